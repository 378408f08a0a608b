from dataclasses import replace

import pytest
import torch

from espalier.records.trajectory import Turn
from espalier.training.packing import TrainingSequence, pack
from espalier.training.rl.rows import Group, dense_rows
from espalier.training.scoring import score
from tests.factories.tiny import tiny_policy
from tests.factories.training import make_task, make_trajectory
from tests.factories.training_episodes import episode, mixed_groups


def _two_turns(reward=1.0, **changes):
    """P P A A O A, and a shorter trajectory."""
    fields = {
        "token_ids": (7, 8, 9, 10, 11, 12),
        "action_mask": (0, 0, 1, 1, 0, 1),
        "behavior_logprobs": (0.0, 0.0, -1.0, -2.0, 0.0, -3.0),
        "turns": (
            Turn(action_start=2, action_end=4, observation_end=5),
            Turn(action_start=5, action_end=6, observation_end=6),
        ),
    }
    return make_trajectory(make_task("lyon"), reward, **(fields | changes))


def _short():
    return make_trajectory(
        make_task("paris"),
        0.0,
        token_ids=(7, 9),
        action_mask=(0, 1),
        behavior_logprobs=(0.0, -1.0),
        turns=(Turn(action_start=1, action_end=2, observation_end=2),),
    )


def _rows(*trajectories, with_observations=False):
    groups = [Group(trajectories=(trajectory,)) for trajectory in trajectories]
    return dense_rows(groups, with_observations=with_observations)


def test_every_quantity_stands_in_the_column_of_its_token():
    rows = _rows(_two_turns(), _short())
    assert rows.action_mask_BT.int().tolist() == [[0, 0, 1, 1, 0, 1], [0, 1, 0, 0, 0, 0]]
    assert rows.turns_BT.tolist() == [[-1, -1, 0, 0, -1, 1], [-1, 0, -1, -1, -1, -1]]
    assert rows.observed_BT.int().tolist() == [[0, 0, 0, 0, 1, 0], [0] * 6]
    assert rows.behavior_logprobs_BT[0].tolist() == [0, 0, -1, -2, 0, -3]
    assert rows.total_tokens_B.tolist() == [6, 2]
    assert rows.groups_B.tolist() == [0, 1]


def test_an_episodes_reward_is_on_its_last_action_token():
    rows = _rows(_two_turns(reward=0.7), _short())
    assert rows.rewards_BT.nonzero().tolist() == [[0, 5]]
    assert float(rows.rewards_BT[0, 5]) == pytest.approx(0.7)


def test_a_turns_reward_is_on_its_last_action_token():
    plain = _two_turns()
    rewarded = tuple(
        replace(turn, reward=r) for turn, r in zip(plain.turns, (0.25, 0.5), strict=True)
    )
    rows = _rows(replace(plain, turns=rewarded, reward={"outcome": 1.0, "turns": 0.75}), _short())
    assert rows.rewards_BT[0].tolist() == [0, 0, 0, 0.25, 0, 1.5]


def test_an_episode_without_an_action_has_no_reward():
    idle = _two_turns(action_mask=(0,) * 6, behavior_logprobs=(0.0,) * 6, turns=())
    rows = _rows(idle, _short())
    assert not rows.rewards_BT.any()


def test_reward_terms_are_sorted_by_name_missing_ones_nan():
    odd = replace(_short(), reward={"outcome": 1.0, "brevity": 0.25})
    rows = _rows(_two_turns(), odd)
    assert rows.reward_names == ("brevity", "format", "outcome")
    assert rows.reward_terms_BK.isnan().tolist() == [[True, False, False], [False, True, False]]


def test_the_ablation_trains_all_after_the_prompt_without_padding():
    rows = _rows(_two_turns(), _short(), with_observations=True)
    assert rows.loss_mask_BT.int().tolist() == [[0, 0, 1, 1, 1, 1], [0, 1, 0, 0, 0, 0]]
    assert rows.behavior_logprobs_BT[0].isnan().tolist() == [False] * 4 + [True, False]


def test_groups_may_be_ragged_and_know_their_baseline_and_silence():
    groups = [
        Group(trajectories=(_short(), _short()), baseline_reward=0.5, is_silenced=True),
        Group(trajectories=(_two_turns(),), baseline_reward=1.0, expected_reward=0.25),
    ]
    rows = dense_rows(groups, with_observations=False)
    assert rows.groups_B.tolist() == [0, 0, 1]
    assert rows.baseline_rewards_B.tolist() == [0.5, 0.5, 1.0]
    assert rows.expected_rewards_B is None
    assert rows.silenced_B.tolist() == [True, True, False]


def test_packing_to_dense_rows_and_back_loses_nothing():
    rows = dense_rows(mixed_groups(), with_observations=False)
    packed = pack(rows.sequences, row_tokens=64, gap=2)
    values = torch.randn(len(packed.sequence_N))
    dense = packed.dense(values, width=rows.width)
    assert torch.equal(packed.flat(dense), values)
    assert torch.equal(dense != 0, rows.loss_mask_BT)


def test_gradients_flow_back_from_dense_rows_to_the_tokens():
    rows = dense_rows(mixed_groups(), with_observations=False)
    packed = pack(rows.sequences, row_tokens=64, gap=2)
    values = torch.randn(len(packed.sequence_N), requires_grad=True)
    weights = torch.randn(len(rows), rows.width)
    (packed.dense(values, width=rows.width) * weights).sum().backward()
    assert torch.equal(values.grad, packed.flat(weights))


def test_tokens_of_a_later_window_do_not_see_earlier_ones():
    """An episode in two contexts is scored as two prompts, and stays one row."""
    model = tiny_policy().model
    first, second = episode(1, 0, turns=1), episode(2, 1, turns=2)
    both = TrainingSequence(
        token_ids=first.token_ids + second.token_ids,
        loss_mask=first.action_mask + second.action_mask,
        window_starts=(0, len(first.token_ids)),
    )
    alone = [
        TrainingSequence(token_ids=t.token_ids, loss_mask=t.action_mask) for t in (first, second)
    ]

    def scored(sequences):
        packed = pack(sequences, row_tokens=64, gap=2)
        width = max(len(sequence.token_ids) for sequence in sequences)
        with torch.no_grad():
            return packed.dense(score(model, packed).logprobs_N, width=width)

    one = scored([both])[0]
    parts = scored(alone)
    torch.testing.assert_close(one[: len(first.token_ids)], parts[0, : len(first.token_ids)])
    torch.testing.assert_close(one[len(first.token_ids) :], parts[1, : len(second.token_ids)])

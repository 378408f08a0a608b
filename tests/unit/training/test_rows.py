from dataclasses import replace

from espalier.records.trajectory import Turn
from espalier.training.rl.rows import Group, dense_rows
from tests.factories.training import make_task, make_trajectory


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


def test_a_turns_reward_is_on_its_last_action_token():
    plain = _two_turns()
    rewarded = tuple(
        replace(turn, reward=r) for turn, r in zip(plain.turns, (0.25, 0.5), strict=True)
    )
    rows = _rows(replace(plain, turns=rewarded, reward={"outcome": 1.0, "turns": 0.75}), _short())
    assert rows.rewards_BT[0].tolist() == [0, 0, 0, 0.25, 0, 1.5]


def test_an_episode_without_an_action_has_no_reward():
    idle = _two_turns(action_mask=(0,) * 6, behavior_logprobs=(0.0,) * 6, turns=())
    assert not _rows(idle, _short()).rewards_BT.any()


def test_reward_terms_are_named_and_missing_ones_nan():
    odd = replace(_short(), reward={"outcome": 1.0, "brevity": 0.25})
    rows = _rows(_two_turns(reward=0.75), odd)
    assert rows.reward_names == ("brevity", "format", "outcome")
    assert rows.reward_terms_BK.isnan().tolist() == [[True, False, False], [False, True, False]]
    assert rows.rewards_BT.tolist() == [[0, 0, 0, 0, 0, 0.75], [0, 1.25, 0, 0, 0, 0]]


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

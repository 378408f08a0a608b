from dataclasses import replace

import pytest
import torch

from espalier.training.grpo.update import PolicyUpdate, training_sequences
from espalier.training.packing import pack
from espalier.training.scoring import score
from tests.unit.training.specimens import PROFILE, TASKS, warm_policy, warm_roller


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    return tmp_path_factory.mktemp("warm")


@pytest.fixture
def policy(warm):
    return warm_policy(warm, steps=40)  # not sure of anything yet: rollouts differ


@pytest.fixture
def groups(policy):
    """Two groups of different episodes with a search each, rewarded every other one."""
    rolled = warm_roller(policy).roll_out(TASKS[:2], samples=40, temperature=1.0, seed=3)
    searched = {t.token_ids: t for t in rolled if t.tool_calls}.values()
    halves = [[t for t in searched if t.task_id == task.task_id][:6] for task in TASKS[:2]]
    assert all(len(half) == 6 for half in halves)
    return [
        [replace(t, reward={"outcome": float(n % 2), "format": 0.0}) for n, t in enumerate(half)]
        for half in halves
    ]


def _update(policy, reference=None, **changes):
    config = PROFILE.training.model_copy(update={"minibatches": 1} | changes)
    return PolicyUpdate(policy.model, reference, config, row_tokens=64)


def _hidden_gradients(policy, groups, **changes):
    """Gradient of each read position's last hidden state, and the ids that stood there."""
    kept = []

    def keep(_module, _arguments, keywords, output):
        output.last_hidden_state.retain_grad()
        kept.append((keywords["input_ids"], output.last_hidden_state))

    handle = policy.model.base_model.register_forward_hook(keep, with_kwargs=True)
    _update(policy, **changes).apply(groups, 0)
    handle.remove()
    return [(ids, hidden.grad.abs().sum(dim=2)) for ids, hidden in kept]


def _positions_that_learn(policy, trajectory, **changes):
    """Columns of `trajectory` whose prediction of the next token gets a gradient."""
    twin = replace(trajectory, reward={"outcome": 1.0 - trajectory.reward["outcome"]})
    # one sequence a row: the trajectory is the row that starts with its tokens
    [(ids_RT, gradient_RT)] = _hidden_gradients(policy, [[trajectory, twin]], **changes)
    length = len(trajectory.token_ids)
    assert tuple(ids_RT[0, :length].tolist()) == trajectory.token_ids
    return set(gradient_RT[0, :length].nonzero().flatten().tolist())


def _logprob_weighed_by_advantage(policy, groups):
    sequences = training_sequences(groups, with_observations=False)
    batch = pack(sequences, row_tokens=64, gap=2)
    with torch.no_grad():
        logprobs_N = score(policy.model, batch).logprobs_N
    return float((logprobs_N * batch.advantages_N).mean())


def test_only_the_predictions_of_sampled_tokens_get_a_gradient(policy, groups):
    trajectory = groups[0][0]
    learning = _positions_that_learn(policy, trajectory)
    sampled = {column - 1 for column, mask in enumerate(trajectory.action_mask) if mask}
    assert learning == sampled


def test_observation_tokens_are_predicted_only_where_the_ablation_asks_for_it(policy, groups):
    trajectory = groups[0][0]
    observed = {
        column - 1
        for turn in trajectory.turns
        for column in range(turn.action_end, turn.observation_end)
    }
    assert observed
    assert not observed & _positions_that_learn(policy, trajectory)
    assert observed <= _positions_that_learn(policy, trajectory, train_on_observations=True)


def test_loss_mask_is_the_action_mask(groups):
    sequences = training_sequences(groups, with_observations=False)
    trajectories = [trajectory for group in groups for trajectory in group]
    assert [s.loss_mask for s in sequences] == [t.action_mask for t in trajectories]


def test_the_prompt_stays_out_of_the_loss_even_with_observations_in_it(groups):
    sequences = training_sequences(groups, with_observations=True)
    trajectories = [trajectory for group in groups for trajectory in group]
    for sequence, trajectory in zip(sequences, trajectories, strict=True):
        first = trajectory.action_mask.index(1)
        assert sequence.loss_mask == (0,) * first + (1,) * (len(trajectory.token_ids) - first)


def test_advantages_of_a_group_sum_to_zero_and_order_as_its_rewards(groups):
    sequences = training_sequences(groups, with_observations=False)
    for start in (0, 6):
        advantages = [sequence.advantage for sequence in sequences[start : start + 6]]
        assert sum(advantages) == pytest.approx(0, abs=1e-5)
        assert [advantage > 0 for advantage in advantages] == [False, True] * 3


def test_engine_and_trainer_agree_on_fresh_rollouts(policy, groups):
    figures = _update(policy).apply(groups, 0)
    assert abs(figures.mismatch_kl) < 1e-6
    assert figures.clipped_share == 0


def test_an_update_makes_rewarded_actions_likelier(policy, groups):
    before = _logprob_weighed_by_advantage(policy, groups)
    update = _update(policy)
    for step in range(3):
        update.apply(groups, step)
    assert _logprob_weighed_by_advantage(policy, groups) > before


def test_observations_in_the_loss_do_not_count_as_a_mismatch(policy, groups):
    figures = _update(policy, train_on_observations=True).apply(groups, 0)
    assert abs(figures.mismatch_kl) < 1e-6


@pytest.mark.parametrize("minibatches", [1, 2, 3])
def test_a_step_takes_as_many_updates_as_asked(policy, groups, minibatches):
    update = _update(policy, minibatches=minibatches)
    update.apply(groups, 0)
    counts = {int(state["step"]) for state in update.updater.optimizer.state.values()}
    assert counts == {minibatches}

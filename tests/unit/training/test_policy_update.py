import math
import re
from dataclasses import replace

import pytest
import torch

from espalier.config import Profile
from espalier.records import DataError, TrainingError
from espalier.training.packing import pack
from espalier.training.rl.assessment import mismatch_warning
from espalier.training.rl.rows import Group, dense_rows, learning_batch
from espalier.training.scoring import score
from tests.factories.training import PROFILE, TASKS, warm_policy, warm_roller
from tests.factories.training_episodes import layout, make_update, step_of


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
    searched = {t.token_ids: t for t in rolled if t.tool_results}.values()
    halves = [[t for t in searched if t.task_id == task.task_id][:6] for task in TASKS[:2]]
    assert all(len(half) == 6 for half in halves)
    return [
        [replace(t, reward={"outcome": float(n % 2), "format": 0.0}) for n, t in enumerate(half)]
        for half in halves
    ]


def _profile(algorithm=None, *, hardware=None, **changes):
    values = PROFILE.model_dump()
    values["hardware"] |= hardware or {}
    values["training"] |= {"minibatches": 1} | changes
    values["training"]["algorithm"] = algorithm or {"preset": "bnpo"}
    return Profile.model_validate(values)


def _apply(update, profile, groups, step=0):
    """One step of learning from plain lists of trajectories."""
    whole = [Group(trajectories=tuple(group)) for group in groups]
    return _apply_whole(update, profile, whole, step)


def _apply_whole(update, profile, groups, step=0):
    """One step of learning from groups."""
    material = learning_batch(groups, profile.training.algorithm.material)
    observed = profile.training.train_on_observations
    rows = dense_rows(material.groups, with_observations=observed)
    return update.apply(rows, material.units, step_of(profile, step))


def _learn(policy, groups, steps=1, algorithm=None, **changes):
    """Figures of the last of `steps` steps on the same groups."""
    profile = _profile(algorithm, **changes)
    update, _ = make_update(policy.model, profile)
    for step in range(steps):
        fresh = [[replace(t, policy_version=step) for t in group] for group in groups]
        figures = _apply(update, profile, fresh, step)
    return figures


def _hidden_gradients(policy, groups, **changes):
    """Gradient of each read position's last hidden state, and the ids that stood there."""
    kept = []

    def keep(_module, _arguments, keywords, output):
        if not output.last_hidden_state.requires_grad:
            return  # scored before the update
        output.last_hidden_state.retain_grad()
        kept.append((keywords["input_ids"], output.last_hidden_state))

    handle = policy.model.base_model.register_forward_hook(keep, with_kwargs=True)
    _learn(policy, groups, **changes)
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


def _advantage_of_what_is_likely(policy, groups):
    """Mean over the action tokens of log-prob times (reward - 1/2)."""
    rows = dense_rows([Group(trajectories=tuple(g)) for g in groups], with_observations=False)
    batch = pack(rows.sequences, row_tokens=64, gap=2)
    with torch.no_grad():
        logprobs_BT = batch.dense(score(policy.model, batch).logprobs_N, width=rows.width)
    signs_B1 = (rows.rewards_BT.sum(dim=1) - 0.5)[:, None]
    return float((logprobs_BT * signs_B1).sum())


@pytest.mark.slow
def test_only_the_predictions_of_sampled_tokens_get_a_gradient(policy, groups):
    trajectory = groups[0][0]
    learning = _positions_that_learn(policy, trajectory)
    sampled = {column - 1 for column, mask in enumerate(trajectory.action_mask) if mask}
    assert learning == sampled


@pytest.mark.slow
def test_observation_tokens_are_trained_only_in_the_ablation(policy, groups):
    trajectory = groups[0][0]
    observed = {
        column - 1
        for turn in trajectory.turns
        for column in range(turn.action_end, turn.observation_end)
    }
    assert observed
    assert not observed & _positions_that_learn(policy, trajectory)
    assert observed <= _positions_that_learn(policy, trajectory, train_on_observations=True)


def test_engine_and_trainer_agree_on_fresh_rollouts(policy, groups):
    figures = _learn(policy, groups)
    assert abs(figures["mismatch_kl"]) < 1e-6
    assert figures["logprob_gap_max"] < 1e-3
    assert figures["clipped_share"] == 0
    assert mismatch_warning(figures, step=1, limit=1e-3) is None


@pytest.mark.slow
def test_trajectories_of_another_policy_are_detected(policy, groups):
    torch.nn.init.normal_(policy.model.get_output_embeddings().weight)
    figures = _learn(policy, groups)
    assert figures["mismatch_kl"] > 0.01
    said = mismatch_warning(figures, step=3, limit=1e-3)
    assert re.match("warning: step 3: .*disagree", said)
    assert "training.max_mismatch_kl=0.001" in said


def test_an_update_makes_rewarded_actions_likelier(policy, groups):
    before = _advantage_of_what_is_likely(policy, groups)
    _learn(policy, groups, steps=3)
    assert _advantage_of_what_is_likely(policy, groups) > before


@pytest.mark.slow
def test_observations_in_the_loss_do_not_count_as_a_mismatch(policy, groups):
    figures = _learn(policy, groups, train_on_observations=True)
    assert abs(figures["mismatch_kl"]) < 1e-6
    assert figures["observation_share"] > 0.1


def test_no_observation_is_in_the_loss(policy, groups):
    assert _learn(policy, groups)["observation_share"] == 0


def test_an_observation_in_the_loss_stops_the_run(policy, groups):
    leaking = groups[0][0]
    first = leaking.turns[0]
    mask = list(leaking.action_mask)
    mask[first.action_end] = 1
    groups[0][0] = replace(leaking, action_mask=tuple(mask))
    with pytest.raises(DataError, match="trajectory 0"):
        _learn(policy, groups)


@pytest.mark.parametrize(("minibatches", "epochs"), [(1, 1), (2, 1), (3, 1), (2, 3)])
def test_a_step_takes_as_many_updates_as_asked(policy, groups, minibatches, epochs):
    profile = _profile(minibatches=minibatches, epochs=epochs)
    update, _ = make_update(policy.model, profile)
    _apply(update, profile, groups)
    counts = {int(state["step"]) for state in update.updater.optimizer.state.values()}
    assert counts == {minibatches * epochs}


def test_later_epochs_are_clipped_where_they_go_too_far(policy, groups):
    fast = {"learning_rate": 3e-2, "warmup_share": 0.0}
    assert _learn(policy, groups, epochs=4, optimizer=fast)["clipped_share"] > 0


def test_tokens_and_positions_of_the_updates_are_counted(policy, groups):
    profile = _profile(minibatches=3, epochs=2)
    update, _ = make_update(policy.model, profile)
    figures = _apply(update, profile, groups)
    tokens = sum(len(t.token_ids) for group in groups for t in group)
    assert figures["update_tokens"] == figures["update_positions"] == 2 * tokens
    assert _apply(update, profile, groups, step=1)["update_tokens"] == 2 * tokens


def test_a_minibatch_with_a_broken_gradient_is_skipped_and_counted(policy, groups):
    profile = _profile(minibatches=2)
    update, _ = make_update(policy.model, profile)
    seen = iter(range(99))
    policy.model.get_input_embeddings().weight.register_hook(
        lambda gradient: gradient * (math.nan if next(seen) == 0 else 1.0)
    )
    figures = _apply(update, profile, groups)
    assert figures["skipped_updates"] == 1
    assert all(math.isfinite(value) for value in figures.values())
    assert {int(state["step"]) for state in update.updater.optimizer.state.values()} == {1}


def test_policy_updates_skipped_in_a_row_stop_the_run(policy, groups):
    profile = _profile(minibatches=2, optimizer={"max_skipped_updates": 4})
    policy.model.get_input_embeddings().weight.register_hook(lambda gradient: gradient * math.nan)
    update, _ = make_update(policy.model, profile)
    _apply(update, profile, groups)
    resumed, _ = make_update(policy.model, profile)
    resumed.restore(update.state())
    with pytest.raises(TrainingError, match="4 optimizer updates"):
        _apply(resumed, profile, groups, step=1)


def test_staleness_is_logged_and_is_no_mismatch(policy, groups):
    profile = _profile()
    update, _ = make_update(policy.model, profile)
    groups[1] = [replace(t, policy_version=5) for t in groups[1]]
    groups[0] = [replace(t, policy_version=3) for t in groups[0]]
    figures = _apply(update, profile, groups, step=5)
    assert (figures["staleness_mean"], figures["staleness_max"]) == (1.0, 2.0)
    groups[1] = [replace(t, policy_version=4) for t in groups[1]]
    assert "mismatch_kl" not in _apply(update, profile, groups, step=6)


def test_a_recomputed_denominator_starts_every_step_at_ratio_1(policy, groups):
    other = [
        [replace(t, behavior_logprobs=tuple(2 * x for x in t.behavior_logprobs)) for t in g]
        for g in groups
    ]
    recomputed = {"preset": "bnpo", "proximal": "recomputed"}
    assert _learn(policy, other)["clipped_share"] > 0
    assert _learn(policy, other, algorithm=recomputed, epochs=1)["clipped_share"] == 0


def test_importance_weights_are_those_of_trainer_over_engine(policy, groups):
    rule = {"name": "importance_weights", "upper": 1.5}
    algorithm = {"preset": "bnpo", "proximal": "recomputed", "off_policy": [rule]}
    agreeing = _learn(policy, groups, algorithm=algorithm)
    names = [name for name in agreeing if "weight" in name or "ratio" in name]
    assert names
    assert agreeing["mismatch_kl"] < 1e-6


def test_rejected_tokens_leave_the_loss(policy, groups):
    odd = groups[0][0]
    last = len(odd.action_mask) - 1 - odd.action_mask[::-1].index(1)
    logprobs = list(odd.behavior_logprobs)
    logprobs[last] -= 8.0
    groups[0][0] = replace(odd, behavior_logprobs=tuple(logprobs))
    rule = {"name": "rejection", "level": "token", "upper": 2.0}
    figures = _learn(policy, groups, algorithm={"preset": "bnpo", "off_policy": [rule]})
    tokens = sum(sum(t.action_mask) for group in groups for t in group)
    [share] = [figures[name] for name in figures if name.startswith("rejected_share")]
    assert share == pytest.approx(1 / tokens)


def test_only_the_tokens_of_highest_entropy_train_where_asked(policy, groups):
    whole = _positions_that_learn(policy, groups[0][0])
    algorithm = {"preset": "bnpo", "filters": [{"name": "high_entropy_tokens", "share": 0.3}]}
    few = _positions_that_learn(policy, groups[0][0], algorithm=algorithm)
    assert few < whole


def test_a_silenced_group_counts_only_in_the_mean(policy, groups):
    profile = _profile()
    before = {n: p.clone() for n, p in policy.model.named_parameters()}
    update, _ = make_update(policy.model, profile)
    silent = [Group(trajectories=tuple(g), is_silenced=True) for g in groups]
    rows = dense_rows(silent, with_observations=False)
    figures = update.apply(rows, [(row,) for row in range(len(rows))], step_of(profile))
    assert figures["grad_norm"] == 0
    assert all(torch.equal(before[n], p) for n, p in policy.model.named_parameters())


@pytest.mark.slow
def test_an_adaptive_kl_coefficient_rises_above_its_target(policy, groups):
    kl = {"coefficient": 0.1, "adaptive": {"target": 1e-6, "horizon": 100}}
    profile = _profile({"preset": "bnpo", "kl": kl})
    update, _ = make_update(policy.model, profile)
    for step in range(3):
        _apply(update, profile, groups, step)
    assert update.kl_coefficient > 0.1
    resumed, _ = make_update(policy.model, profile)
    resumed.restore(update.state())
    assert resumed.kl_coefficient == update.kl_coefficient


@pytest.mark.slow
def test_activation_checkpointing_changes_no_gradient(warm, policy, groups):
    plain = _learn(policy, groups)
    again = warm_policy(warm, steps=40)
    checkpointed = _learn(again, groups, hardware={"activation_checkpointing": True})
    assert again.model.is_activation_checkpointing
    assert checkpointed["grad_norm"] == pytest.approx(plain["grad_norm"], rel=1e-5)


@pytest.mark.slow
def test_bfloat16_stays_near_float32(policy, groups):
    profile = _profile()
    how = layout()
    rough = replace(how, hardware=how.hardware._replace(autocast=torch.bfloat16))
    update, _ = make_update(policy.model, profile, rough)
    figures = _apply(update, profile, groups)
    assert 1e-7 < figures["mismatch_kl"] < 1e-2
    assert all(p.dtype == torch.float32 for p in policy.model.parameters())


def _explained(policy, groups, rewards, expected):
    """`explained_variance` of a step whose groups have these rewards and predictions."""
    rewarded = [
        Group(
            trajectories=tuple(replace(t, reward={"outcome": reward}) for t in group),
            expected_reward=guess,
        )
        for group, reward, guess in zip(groups, rewards, expected, strict=True)
    ]
    profile = _profile({"preset": "spo"})
    update, _ = make_update(policy.model, profile)
    return _apply_whole(update, profile, rewarded).get("explained_variance")


def test_predictions_of_outcomes_are_judged_by_explained_variance(policy, groups):
    # half of each surprise is left: a quarter of the variance
    assert _explained(policy, groups, [1.0, 0.0], [0.75, 0.25]) == pytest.approx(0.75)
    assert _explained(policy, groups, [1.0, 0.0], [0.4, 0.4]) == pytest.approx(0.0, abs=1e-6)
    assert _explained(policy, groups, [1.0, 1.0], [0.75, 0.25]) is None, "nothing to explain"

import math
from dataclasses import replace

import pytest
import torch

from espalier.config import Profile
from espalier.records import DataError, TrainingError
from espalier.rollout.engines.engine import KindChoice
from espalier.training.checkpoint import cloned_weights
from espalier.training.packing import pack
from espalier.training.rl.assessment import (
    StepContext,
    engine_mismatch,
    mismatch_warning,
    start_warning,
)
from espalier.training.rl.rows import Group, dense_rows, learning_batch
from espalier.training.rl.update import HeadGate
from espalier.training.scoring import ScoreRequest, score
from tests.factories.training import PROFILE, TASKS, warm_policy, warm_roller
from tests.factories.training_episodes import layout, make_update, mixed_groups, step_of


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


def _profile(algorithm=None, **changes):
    values = PROFILE.model_dump()
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


def _positions_that_learn(policy, trajectory, **changes):
    """Columns of `trajectory` whose prediction of the next token gets a gradient."""
    kept = []

    def keep(_module, _arguments, keywords, output):
        if output.last_hidden_state.requires_grad:  # else scored before the update
            output.last_hidden_state.retain_grad()
            kept.append((keywords["input_ids"], output.last_hidden_state))

    twin = replace(trajectory, reward={"outcome": 1.0 - trajectory.reward["outcome"]})
    handle = policy.model.base_model.register_forward_hook(keep, with_kwargs=True)
    _learn(policy, [[trajectory, twin]], **changes)
    handle.remove()
    # one sequence a row: the trajectory is the row that starts with its tokens
    [(ids_RT, hidden_RTH)] = kept
    length = len(trajectory.token_ids)
    assert tuple(ids_RT[0, :length].tolist()) == trajectory.token_ids
    return set(hidden_RTH.grad.abs().sum(dim=2)[0, :length].nonzero().flatten().tolist())


@pytest.mark.slow
def test_predictions_of_sampled_tokens_alone_learn_except_in_the_ablation(policy, groups):
    trajectory = groups[0][0]
    sampled = {column - 1 for column, mask in enumerate(trajectory.action_mask) if mask}
    spans = [range(turn.action_end, turn.observation_end) for turn in trajectory.turns]
    observed = {column - 1 for span in spans for column in span}
    assert observed
    assert _positions_that_learn(policy, trajectory) == sampled
    assert observed <= _positions_that_learn(policy, trajectory, train_on_observations=True)


@pytest.mark.slow
def test_observations_in_the_loss_do_not_count_as_a_mismatch(policy, groups):
    figures = _learn(policy, groups, train_on_observations=True)
    assert abs(figures["mismatch_kl"]) < 1e-6
    assert figures["observation_share"] > 0.1


def test_engine_and_trainer_agree_on_fresh_rollouts(policy, groups):
    figures = _learn(policy, groups)
    assert abs(figures["mismatch_kl"]) < 1e-6
    assert figures["logprob_gap_max"] < 1e-3
    assert figures["clipped_share"] == figures["observation_share"] == 0
    assert mismatch_warning(figures, step=1, limit=1e-3) is None


def test_an_update_makes_rewarded_actions_likelier(policy, groups):
    rows = dense_rows([Group(trajectories=tuple(g)) for g in groups], with_observations=False)
    batch = pack(rows.sequences, row_tokens=64, gap=2)
    signs_B1 = (rows.rewards_BT.sum(dim=1) - 0.5)[:, None]

    def preference():
        """Sum over the action tokens of log-prob times (reward - 1/2)."""
        with torch.no_grad():
            logprobs_BT = batch.dense(score(policy.model, batch).logprobs_N, width=rows.width)
        return float((logprobs_BT * signs_B1).sum())

    before = preference()
    _learn(policy, groups, steps=3)
    assert preference() > before


def test_an_observation_in_the_loss_stops_the_run(policy, groups):
    leaking = groups[0][0]
    mask = list(leaking.action_mask)
    mask[leaking.turns[0].action_end] = 1
    groups[0][0] = replace(leaking, action_mask=tuple(mask))
    with pytest.raises(DataError, match="trajectory 0"):
        _learn(policy, groups)


@pytest.mark.parametrize(("minibatches", "epochs"), [(1, 1), (3, 2)])
def test_a_step_takes_and_counts_as_many_updates_as_asked(policy, groups, minibatches, epochs):
    profile = _profile(minibatches=minibatches, epochs=epochs)
    update, _ = make_update(policy.model, profile)
    figures = _apply(update, profile, groups)
    counts = {int(state["step"]) for state in update.updater.optimizer.state.values()}
    assert counts == {minibatches * epochs}
    tokens = epochs * sum(len(t.token_ids) for group in groups for t in group)
    assert figures["update_tokens"] == figures["update_positions"] == tokens
    assert _apply(update, profile, groups, step=1)["update_tokens"] == tokens


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


def test_a_surge_in_the_head_ends_the_steps_updates(policy, groups, monkeypatch):
    monkeypatch.setattr(HeadGate, "SURGE", 0.0)  # every update after the first is a surge
    profile = _profile(minibatches=3, epochs=2)
    start = cloned_weights(policy.model)
    kept = {}
    for gated in (False, True):
        policy.model.load_state_dict(start)
        update, _ = make_update(policy.model, profile)
        update.head_gate.is_on = gated
        figures = _apply(update, profile, groups)
        kept[gated] = figures.get("gated"), {int(s["step"]) for s in _states(update)}
    assert kept == {False: (None, {6}), True: (1.0, {1})}


def _states(update):
    """Optimizer state of every weight."""
    return update.updater.optimizer.state.values()


@pytest.mark.slow
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

    def figures_of(*versions, step):
        pairs = zip(groups, versions, strict=True)
        aged = [[replace(t, policy_version=version) for t in g] for g, version in pairs]
        return _apply(update, profile, aged, step=step)

    figures = figures_of(3, 5, step=5)
    assert (figures["staleness_mean"], figures["staleness_max"]) == (1.0, 2.0)
    assert "mismatch_kl" not in figures_of(3, 4, step=6)


def test_a_recomputed_denominator_starts_every_step_at_ratio_1(policy, groups):
    other = [
        [replace(t, behavior_logprobs=tuple(2 * x for x in t.behavior_logprobs)) for t in g]
        for g in groups
    ]
    recomputed = {"preset": "bnpo", "proximal": "recomputed"}
    assert _learn(policy, other)["clipped_share"] > 0
    assert _learn(policy, other, algorithm=recomputed, epochs=1)["clipped_share"] == 0
    fast = {"learning_rate": 3e-2, "warmup_share": 0.0}
    later = _learn(policy, other, algorithm=recomputed, epochs=4, optimizer=fast)
    assert later["clipped_share"] > 0, "later epochs go too far"


def test_rejected_tokens_leave_the_loss(policy, groups):
    logprobs, mask = list(groups[0][0].behavior_logprobs), groups[0][0].action_mask
    logprobs[len(mask) - 1 - mask[::-1].index(1)] -= 8.0  # of its last action token
    groups[0][0] = replace(groups[0][0], behavior_logprobs=tuple(logprobs))
    rule = {"name": "rejection", "level": "token", "upper": 2.0}
    figures = _learn(policy, groups, algorithm={"preset": "bnpo", "off_policy": [rule]})
    tokens = sum(sum(t.action_mask) for group in groups for t in group)
    [share] = [figures[name] for name in figures if name.startswith("rejected_share")]
    assert share == pytest.approx(1 / tokens)


def test_only_the_tokens_of_highest_entropy_train_where_asked(policy, groups):
    whole = _positions_that_learn(policy, groups[0][0])
    filters = [{"name": "high_entropy_tokens", "share": 0.3}]
    algorithm = {"preset": "bnpo", "filters": filters}
    assert _positions_that_learn(policy, groups[0][0], algorithm=algorithm) < whole


def test_a_silenced_group_counts_only_in_the_mean(policy, groups):
    profile, before = _profile(), cloned_weights(policy.model)
    update, _ = make_update(policy.model, profile)
    silent = [Group(trajectories=tuple(g), is_silenced=True) for g in groups]
    assert _apply_whole(update, profile, silent)["grad_norm"] == 0
    assert all(torch.equal(before[n], p) for n, p in policy.model.state_dict().items())


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
def test_bfloat16_stays_near_float32(policy, groups):
    profile = _profile()
    how = layout()
    rough = replace(how, hardware=how.hardware._replace(autocast=torch.bfloat16))
    update, _ = make_update(policy.model, profile, rough)
    figures = _apply(update, profile, groups)
    assert 1e-7 < figures["mismatch_kl"] < 1e-2
    assert all(p.dtype == torch.float32 for p in policy.model.parameters())


@pytest.mark.parametrize(
    ("rewards", "expected", "explained"),
    [
        # half of each surprise is left: a quarter of the variance
        ((1.0, 0.0), (0.75, 0.25), 0.75),
        ((1.0, 0.0), (0.4, 0.4), 0.0),
        ((1.0, 1.0), (0.75, 0.25), None),  # nothing to explain
    ],
)
def test_predictions_are_judged_by_explained_variance(policy, groups, rewards, expected, explained):
    rewarded = [
        Group(
            trajectories=tuple(replace(t, reward={"outcome": reward}) for t in group),
            expected_reward=guess,
        )
        for group, reward, guess in zip(groups, rewards, expected, strict=True)
    ]
    profile = _profile({"preset": "spo"})
    update, _ = make_update(policy.model, profile)
    found = _apply_whole(update, profile, rewarded).get("explained_variance")
    assert found == (None if explained is None else pytest.approx(explained, abs=1e-6))


def _rows():
    return dense_rows(mixed_groups(), with_observations=False)


def _found(rows, trainer_BT, *, scored=None, version=0, kind_choice=None, top_k=0):
    step = StepContext(version, ScoreRequest(top_k=top_k), kind_choice)
    return engine_mismatch(
        rows, trainer_BT, scored=range(len(rows)) if scored is None else scored, step=step
    )


def test_the_gap_is_in_nats_over_action_tokens():
    rows = _rows()
    trainer_BT = (rows.behavior_logprobs_BT + 0.1).where(rows.action_mask_BT, -99.0)
    found = _found(rows, trainer_BT)
    assert found["logprob_gap_max"] == pytest.approx(0.1, abs=1e-6)
    # k3 of sampler to trainer: exp(d) - d - 1 with d = trainer - sampler
    assert found["mismatch_kl"] == pytest.approx(math.exp(0.1) - 1.1, rel=1e-4)


def test_rows_that_were_not_scored_in_time_do_not_count():
    rows = _rows()
    trainer_BT = rows.behavior_logprobs_BT.clone()
    assert set(_found(rows, trainer_BT).values()) == {0.0}
    trainer_BT[0] += 1.0
    assert _found(rows, trainer_BT, scored=range(1, len(rows)))["mismatch_kl"] == 0
    assert _found(rows, trainer_BT, version=3) == {}


def test_action_kinds_are_compared_under_their_sampling_mixture():
    rows = _rows()
    first = int(rows.action_mask_BT[0].nonzero()[0])
    after_id, kind_id = rows.sequences[0].token_ids[first : first + 2]
    choice = KindChoice(epsilon=0.3, after_id=after_id, kind_ids=(kind_id, 9999))
    policy_BT = rows.behavior_logprobs_BT.clone()
    drawn = 0.7 * math.exp(float(policy_BT[0, first + 1])) + 0.3 / 2
    rows.behavior_logprobs_BT[0, first + 1] = math.log(drawn)
    assert _found(rows, policy_BT, kind_choice=choice)["logprob_gap_max"] < 1e-6
    assert _found(rows, policy_BT)["logprob_gap_max"] > 0.01
    # beside a truncated distribution it is not compared
    assert _found(rows, policy_BT, kind_choice=choice, top_k=5)["logprob_gap_max"] == 0


def warned(*history, offers_tools=True, rollouts=8):
    rows = [{"step": n, "rollouts": n * rollouts, **row} for n, row in enumerate(history, start=1)]
    return start_warning(rows, offers_tools=offers_tools)


def test_a_start_without_a_right_attempt_is_warned_of_once():
    wrong = {"pass_rate": 0.0, "tool_calls": 0.5}
    right = {**wrong, "pass_rate": 0.1}
    assert "warm_start.steps" in warned(wrong, wrong, wrong)
    assert warned(wrong, wrong) is warned(wrong, wrong, wrong, wrong) is None
    assert warned(wrong, wrong, right) is None


@pytest.mark.parametrize(("rollouts", "at"), [(8, 3), (15, 3), (16, 2), (31, 2), (32, 1), (999, 1)])
def test_a_start_without_a_call_is_warned_of_once(rollouts, at):
    silent = {"pass_rate": 0.4, "tool_calls": 0.0}
    said = [warned(*[silent] * steps, rollouts=rollouts) for steps in range(1, 6)]
    assert [bool(line) for line in said] == [steps == at for steps in range(1, 6)]
    assert f"first {at * rollouts} attempts, although tools are offered" in said[at - 1]
    assert "policy.dialect" in said[at - 1]
    calling = {**silent, "tool_calls": 0.1}
    assert warned(*[silent] * (at - 1), calling, rollouts=rollouts) is None
    assert warned(*[silent] * at, offers_tools=False, rollouts=rollouts) is None


def test_calls_that_a_dialect_cannot_read_are_warned_of():
    found = {"pass_rate": 0.4, "tool_calls": 0.5, "unread_calls/hermes": 0.1}
    rare = {**found, "unread_calls/hermes": 0.09}
    mistaken = {**rare, "unread_calls/broken": 0.5, "unread_calls/unknown_tool": 0.5}
    assert "10% hermes" in warned(found, rollouts=32)
    assert warned(rare, rollouts=32) is warned(mistaken, rollouts=32) is None
    silent = {**mistaken, "tool_calls": 0.0}
    assert "50% broken" in warned(silent, rollouts=32)


def test_a_start_without_right_attempts_or_calls_has_one_warning():
    nothing = {"pass_rate": 0.0, "tool_calls": 0.0}
    line = warned(nothing, nothing, nothing)
    assert "was right and none called a tool" in line
    assert "policy.dialect" in line
    line = warned(nothing, nothing, nothing, offers_tools=False)
    assert "was right; RL learns" in line

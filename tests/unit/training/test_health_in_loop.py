"""The loop tells what its detectors notice, and an interrupted run tells the same."""

from dataclasses import replace

import pytest
import torch

from espalier.records import NullTracker
from espalier.records.notices import read_notices
from espalier.training.checkpoint import cloned_weights
from espalier.training.health.responses import ENTROPY_BONUS, KL_FACTOR, RESPONSES, Responder
from espalier.training.rl.controls import LoopControls
from espalier.training.rl.replay import ReplayBuffer
from espalier.training.rl.step_streams import StepStreams
from espalier.training.rl.update import HeadGate
from tests.factories.rl_loops import HOPELESS, changed, loop_of, same_weights
from tests.factories.training import Interrupted, InterruptingTracker


class Notes(InterruptingTracker):
    """Keeps the lines that the loop shows, and never interrupts."""

    def __init__(self):
        super().__init__(10**6)
        self.lines = []

    def note(self, line):
        self.lines.append(line)


def notices_in(folder):
    """Without times, which differ from run to run."""
    return [replace(notice, time=0.0) for notice in read_notices(folder / "streams")]


def written_loop(warm, folder, profile, **settings):
    """A loop that writes streams, and its policy."""
    loop, model = loop_of(warm, folder, profile, **settings)
    loop.parts.streams = StepStreams(folder / "streams")
    return loop, model


def run_written(warm, folder, tracker=None, *, profile, **settings):
    loop, model = written_loop(warm, folder, profile, **settings)
    loop.run(tracker or NullTracker())
    return loop, model


def hopeless(**training):
    """No attempt is ever right: outcomes are all equal."""
    return changed(stop_after_idle_steps=0, steps=6, **training)


def test_a_run_that_learns_nothing_is_noticed_and_logged_once(warm, tmp_path):
    notes = Notes()
    run_written(warm, tmp_path, notes, profile=hopeless(), tasks=HOPELESS)
    [notice] = [one for one in notices_in(tmp_path) if one.detector == "equal_outcomes"]
    assert (notice.step, notice.since_step) == (3, 1)
    assert notice.key == "curriculum.pass_rate_band"
    assert len([line for line in notes.lines if ": equal_outcomes " in line]) == 1


def test_a_resumed_run_has_the_notices_of_an_unbroken_one(warm, tmp_path):
    profile = hopeless()
    run_written(warm, tmp_path / "unbroken", profile=profile, tasks=HOPELESS)
    loop, _ = written_loop(warm, tmp_path / "broken", profile, tasks=HOPELESS)
    with pytest.raises(Interrupted):
        loop.run(InterruptingTracker(5))
    run_written(warm, tmp_path / "broken", profile=profile, tasks=HOPELESS)
    assert notices_in(tmp_path / "broken") == notices_in(tmp_path / "unbroken") != []


def test_an_ignored_detector_leaves_no_notice(warm, tmp_path):
    profile = hopeless(health={"ignore": ["equal_outcomes"]})
    run_written(warm, tmp_path, profile=profile, tasks=HOPELESS)
    assert "equal_outcomes" not in [one.detector for one in notices_in(tmp_path)]


def restless(**training):
    """Three passes with so narrow a clip that most tokens leave it in the later ones."""
    narrow = {"name": "ppo_clip", "clip_low": 1e-6, "clip_high": 1e-6}
    algorithm = {"loss": narrow, "kl": {"coefficient": 0.05}}
    settings = {"steps": 8, "epochs": 3, "minibatches": 2, "algorithm": algorithm}
    settings |= training
    return changed(**settings, health={"response": "act"})


@pytest.mark.parametrize(
    "action", ["lowered_rate", "gated", "left_out_term", "added_entropy", "raised_kl"]
)
def test_a_response_is_the_same_after_a_resume(warm, tmp_path, monkeypatch, action):
    monkeypatch.setitem(RESPONSES, "clipped", (action,))
    monkeypatch.setattr(Responder, "_term_at_fault", lambda *_: "format")
    monkeypatch.setattr(HeadGate, "SURGE", 0.0)  # every update after the first is a surge
    _, unbroken = run_written(warm, tmp_path / "unbroken", profile=restless())
    loop, _ = written_loop(warm, tmp_path / "broken", restless())
    with pytest.raises(Interrupted):
        loop.run(InterruptingTracker(7))
    _, resumed = run_written(warm, tmp_path / "broken", profile=restless())
    notices = notices_in(tmp_path / "unbroken")
    assert action in [notice.action for notice in notices]
    assert notices_in(tmp_path / "broken") == notices
    assert same_weights(unbroken, resumed)


def controls_of(loop):
    """What a response to a notice may change in the loop."""
    parts = loop.parts
    return LoopControls(loop._update, parts.pool, loop.progress, parts.publisher, parts.sampler)


def test_added_entropy_trains_as_the_profiles_own_does(warm, tmp_path):
    own = changed(steps=2, algorithm={"entropy_coefficient": ENTROPY_BONUS})
    by_profile, _ = run_written(warm, tmp_path / "own", profile=own)
    none = changed(steps=2, algorithm={})
    added, _ = written_loop(warm, tmp_path / "added", none)
    controls_of(added).add_entropy(ENTROPY_BONUS)
    added.run(NullTracker())
    assert added.progress.history == by_profile.progress.history
    plain, _ = run_written(warm, tmp_path / "plain", profile=none)
    assert added.progress.history[0]["loss"] != plain.progress.history[0]["loss"]


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_a_raised_penalty_trains_as_the_profiles_own_does(warm, tmp_path, place):
    kl = {"place": place, "coefficient": 0.05}
    own = changed(steps=2, algorithm={"kl": kl | {"coefficient": 0.05 * KL_FACTOR}})
    by_profile, _ = run_written(warm, tmp_path / "own", profile=own)
    raised, _ = written_loop(warm, tmp_path / "raised", changed(steps=2, algorithm={"kl": kl}))
    controls_of(raised).scale_kl(KL_FACTOR)
    raised.run(NullTracker())
    assert raised.progress.history == by_profile.progress.history


def test_groups_that_a_left_out_term_paid_are_not_replayed(warm, tmp_path, monkeypatch):
    monkeypatch.setitem(RESPONSES, "clipped", ("left_out_term",))
    monkeypatch.setattr(Responder, "_term_at_fault", lambda *_: "format")
    replay = {"capacity": 8, "share": 0.5, "max_staleness": 8}
    loop, _ = run_written(warm, tmp_path, profile=restless(replay=replay))
    [step] = [it.step for it in notices_in(tmp_path) if it.action == "left_out_term"]
    before, after = loop.progress.history[step - 1], loop.progress.history[step]
    assert "reward/format" in before
    assert before["staleness_max"] > 0
    assert "reward/format" not in after
    assert after["staleness_max"] == 0


class OneBadStep:
    """A sampler whose engine reports wrong log-probs in one step, counted from 0."""

    STEP = 6

    def __init__(self, loop, model):
        self._own, self._model = loop.parts.sampler, model
        self.ledger, self.left_out = self._own.ledger, self._own.left_out
        self.weights = {}

    def sample(self, step, *, groups):
        self.weights[step] = cloned_weights(self._model)
        found = self._own.sample(step, groups=groups)
        if step == self.STEP:
            found.groups = [
                replace(group, trajectories=tuple(map(_misreported, group.trajectories)))
                for group in found.groups
            ]
        return found

    def close(self):
        self._own.close()


def _misreported(trajectory):
    masked = zip(trajectory.behavior_logprobs, trajectory.action_mask, strict=True)
    return replace(trajectory, behavior_logprobs=tuple(it - 0.5 * acted for it, acted in masked))


def with_a_bad_step(warm, folder, profile, tracker):
    loop, model = written_loop(warm, folder, profile)
    sampler = loop.parts.sampler = OneBadStep(loop, model)
    loop.run(tracker)
    return loop, model, sampler.weights


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("proximal", ["behavior", "recomputed"])
def test_a_step_with_wrong_logprobs_changes_nothing(warm, tmp_path, proximal):
    bad, replay = OneBadStep.STEP, {"capacity": 8, "share": 0.5, "max_staleness": 8}
    settings = {"steps": 9, "minibatches": 2, "algorithm": {"proximal": proximal}}
    profile = changed(**settings, replay=replay, health={"response": "act"})
    loop, unbroken, weights = with_a_bad_step(warm, tmp_path / "a", profile, NullTracker())
    assert equal(weights[bad], weights[bad + 1])
    assert not equal(weights[bad + 1], weights[bad + 2])
    skipped = [row.get("skipped_step") for row in loop.progress.history]
    assert skipped == [None] * bad + [1.0, 0.0, 0.0]
    notices = notices_in(tmp_path / "a")
    assert [one.step for one in notices if one.action == "skipped_step"] == [bad + 1]
    with pytest.raises(Interrupted):
        with_a_bad_step(warm, tmp_path / "b", profile, InterruptingTracker(bad + 1))
    _, resumed, _ = with_a_bad_step(warm, tmp_path / "b", profile, NullTracker())
    assert notices_in(tmp_path / "b") == notices
    assert same_weights(unbroken, resumed)


def test_attempts_of_a_skipped_step_are_not_replayed(warm, tmp_path, monkeypatch):
    kept, add = [], ReplayBuffer.add

    def counted(self, groups, *, version):
        kept.append(len(groups))
        add(self, groups, version=version)

    monkeypatch.setattr(ReplayBuffer, "add", counted)
    profile = changed(steps=8, health={"response": "act"})
    with_a_bad_step(warm, tmp_path, profile, NullTracker())
    assert kept[OneBadStep.STEP] == 0
    assert kept[OneBadStep.STEP + 1] > 0


def test_a_leaking_mask_ends_an_acting_run_for_good(warm, tmp_path):
    profile = changed(train_on_observations=True, health={"response": "act"})
    for _ in range(2):
        notes = Notes()
        loop, _ = run_written(warm, tmp_path, notes, profile=profile)
        assert len(loop.progress.history) == 1
        assert notes.lines[-1].startswith("stopped after step 1: mask_leak: ")
    assert [notice.action for notice in notices_in(tmp_path)] == ["", "stopped"]

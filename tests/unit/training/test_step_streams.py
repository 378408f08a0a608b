"""Streams of a training: complete, the same after a kill, and without effect on the run."""

import pytest

from espalier.records import NullTracker
from espalier.records.episodes import mask_of, unpacked
from espalier.records.notices import Notice
from espalier.records.streams import read_index, read_stream, segments
from espalier.training.health.monitor import HealthMonitor
from espalier.training.rl.step_streams import StepStreams
from tests.factories.rl_loops import changed, loop_of, same_weights
from tests.factories.training import Interrupted, InterruptingTracker

pytestmark = pytest.mark.slow

SHORT = changed(steps=4, evaluate_every=2)


def run(warm, directory, tracker=None, profile=SHORT):
    loop, model = loop_of(warm, directory, profile=profile)
    loop.parts.streams = StepStreams(directory / "streams", profile.training.streams)
    loop.run(tracker or NullTracker())
    return loop, model


def rows(directory, stream):
    return list(read_stream(directory / "streams", stream))


def without_times(records):
    return [{name: it for name, it in one.items() if name not in ("time", "timings", "spans")}
            for one in records]  # fmt: skip


@pytest.fixture(scope="module")
def whole(warm, tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    return directory, *run(warm, directory)


def test_streams_hold_every_attempt_and_figure(whole):
    directory, loop, _ = whole
    episodes, steps = rows(directory, "episodes"), rows(directory, "steps")
    assert len(episodes) == loop.progress.rollouts
    last = [one for one in episodes if one["step"] == SHORT.training.steps]
    assert [(one["task_id"], one["reward"]) for one in last] == [
        (one.task_id, one.reward) for one in loop.progress.last_step
    ]
    assert [one["figures"] for one in steps] == loop.progress.history
    assert all(one["timings"]["step_s"] > 0 for one in steps)
    assert all(segment.is_finished for segment in segments(directory / "streams", "episodes"))


def test_a_trained_attempt_has_advantages_and_the_trainers_logprobs(whole):
    directory, _, _ = whole
    trained = [one for one in rows(directory, "episodes") if one["trained"]]
    assert trained
    gaps = []
    for one in trained:
        sampled = int(mask_of(one["mask_runs"]).sum())
        assert len(unpacked(one["advantages"], "<f4")) == sampled
        if "trainer_logprobs" not in one:  # of a later minibatch: scored after an update
            continue
        engine, trainer = (
            unpacked(one[f"{whose}_logprobs"], "<f4") for whose in ("behavior", "trainer")
        )
        gaps += abs(engine - trainer).tolist()
    assert gaps
    assert max(gaps) < 1e-3


def test_entropies_agree_with_the_steps_mean(whole):
    """The first minibatch's mean is not the step's, which is of weights that move: within 10 %."""
    directory, loop, _ = whole
    records = rows(directory, "episodes")
    for row in loop.progress.history:
        own = [one for one in records if one["step"] == row["step"] and "entropies" in one]
        values = [value for one in own for value in unpacked(one["entropies"], "<f4").tolist()]
        assert min(values) >= 0
        assert sum(values) / len(values) == pytest.approx(row["entropy"], rel=0.1)
        assert all("trainer_logprobs" in one for one in own)


def test_every_attempt_has_measured_spans(whole):
    directory, _, _ = whole
    for one in rows(directory, "episodes"):
        kinds = [kind for kind, *_ in one["spans"]]
        assert kinds.count("sampling") == len(one["turns"])
        assert kinds.count("tools") == len(one["tool_calls"])
        ends = [start <= end for _, start, end, _ in one["spans"]]
        assert all(ends)


def test_kept_groups_are_whole_and_the_same_in_every_run(whole, warm, tmp_path):
    directory, loop, model = whole
    streams = {"attempts_share": 0.5, "token_values_share": 0.0}
    some, same = run(warm, tmp_path, profile=changed(steps=4, evaluate_every=2, streams=streams))
    assert same_weights(same, model)
    assert some.progress.history == loop.progress.history
    kept = without_times(rows(tmp_path, "episodes"))
    groups = {(one["step"], one["task_id"]) for one in kept}
    of_groups = [one for one in without_times(rows(directory, "episodes"))
                 if (one["step"], one["task_id"]) in groups]  # fmt: skip
    assert 0 < len(kept) < loop.progress.rollouts
    assert [one["token_ids"] for one in kept] == [one["token_ids"] for one in of_groups]
    assert any(one["trained"] for one in kept)
    assert not any(one.keys() & {"advantages", "entropies", "loss_runs"} for one in kept)


def test_groups_that_notices_name_are_kept(warm, tmp_path, monkeypatch):
    def tells(self, row, sampled=()):
        name = f"{row['step']:.0f}/{sampled[0].task_id}/0"
        told = {"detector": "entropy", "severity": "warning", "since_step": 1, "message": "low"}
        return [Notice(step=int(row["step"]), time=0.0, attempts=(name,), **told)]

    monkeypatch.setattr(HealthMonitor, "observe", tells)
    run(warm, tmp_path, profile=changed(steps=2, streams={"attempts_share": 0.0}))
    kept = [f"{it['step']}/{it['task_id']}/{it['sample']}" for it in rows(tmp_path, "episodes")]
    named = [one["attempts"][0] for one in rows(tmp_path, "notices") if "attempts" in one]
    assert kept == [name[:-1] + str(number) for name in named for number in range(4)]
    assert len(named) == 2


def test_streams_do_not_change_the_run(whole, warm, tmp_path):
    _, loop, model = whole
    bare, bare_model = loop_of(warm, tmp_path, profile=SHORT)
    bare.run(NullTracker())
    assert bare.progress.history == loop.progress.history
    assert same_weights(bare_model, model)


def test_a_resumed_run_has_no_record_twice(whole, warm, tmp_path):
    directory, _, _ = whole
    with pytest.raises(Interrupted):
        run(warm, tmp_path, InterruptingTracker(3))
    run(warm, tmp_path)
    for stream in ("episodes", "steps"):
        assert without_times(rows(tmp_path, stream)) == without_times(rows(directory, stream))
    restarts = [one["step"] for one in rows(tmp_path, "notices") if one["level"] == "restart"]
    assert restarts == [2]


def test_lost_streams_are_made_up_from_the_checkpoint(warm, tmp_path):
    with pytest.raises(Interrupted):
        run(warm, tmp_path, InterruptingTracker(3))
    for path in (tmp_path / "streams").iterdir():
        path.unlink()
    loop, _ = run(warm, tmp_path)
    assert [one["figures"] for one in rows(tmp_path, "steps")] == loop.progress.history
    assert {one["step"] for one in rows(tmp_path, "episodes")} == {3, 4}


def test_every_index_leads_to_its_records(whole):
    directory, _, _ = whole
    for segment in segments(directory / "streams", "episodes"):
        found = list(read_index(segment))
        assert found
        assert all(entry.summary["trained"] in (True, False) for entry in found)
        assert found[-1].offset + found[-1].num_bytes == segment.path.stat().st_size

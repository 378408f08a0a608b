"""A log of Inspect: its samples, what its lists show, and its results."""

import json
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest

from espalier.records import ArtifactError, ToolSpec
from espalier.records.episodes import EpisodePlace
from espalier.records.spans import Span
from espalier.records.trajectory import FinishReason
from espalier_interop.exports.inspect_log import InspectLog
from espalier_interop.exports.turns import ExportedTrajectory, exported_turns
from tests.factories.attempts import made_attempt
from tests.factories.records import make_task, make_trajectory
from tests.factories.sample_run import trajectory

TOOLS = (ToolSpec(name="search", parameters={"type": "object", "properties": {}}),)
GOLDEN = Path(__file__).with_name("golden") / "inspect.json"
ORIGIN = "demo/evaluation/streams/trained"


def exported(attempt, sample=0, *, row=0, step=0, task=None):
    place = EpisodePlace(step, sample, 1_796_000_000.0)
    turns = exported_turns(attempt, task)
    return ExportedTrajectory(row, attempt, turns, task, TOOLS, place, ORIGIN)


def log_of(path, attempts):
    """What the log of these attempts holds: name of a file in it -> its content."""
    with InspectLog(path) as log:
        for one in attempts:
            log.add(one)
    with ZipFile(path) as opened:
        return {name: json.loads(opened.read(name)) for name in opened.namelist()}


def test_a_log_is_the_one_kept_as_golden(tmp_path):
    attempt = replace(trajectory(1, "Lyon | country: France", "Paris"), task_id="h0")
    task = make_task("h0", gold=("Paris",), split="heldout")
    found = log_of(tmp_path / "x.eval", [exported(attempt, task=task)])
    found["header.json"]["eval"]["packages"]["espalier"] = "VERSION"
    if not GOLDEN.exists():  # delete the file to write it anew, then read what changed
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(GOLDEN.read_text())


def test_attempts_at_a_task_are_epochs_of_its_sample(tmp_path):
    attempts = [exported(made_attempt(seed, "h"), sample=seed) for seed in range(3)]
    files = log_of(tmp_path / "x.eval", attempts)
    assert [name for name in files if name.startswith("samples/")] == [
        f"samples/h_epoch_{epoch}.json" for epoch in (1, 2, 3)
    ]
    summaries = files["summaries.json"]
    assert [(one["id"], one["epoch"]) for one in summaries] == [("h", 1), ("h", 2), ("h", 3)]
    assert files["header.json"]["eval"]["config"] == {"epochs": 3}


def test_a_task_of_two_steps_is_two_samples(tmp_path):
    attempts = [exported(made_attempt(1, "t"), step=step) for step in (4, 5)]
    header = log_of(tmp_path / "x.eval", attempts)["header.json"]
    assert header["eval"]["dataset"]["sample_ids"] == ["t@4", "t@5"]


def test_accuracy_is_that_of_greedy_attempts_first(tmp_path):
    right, wrong = make_trajectory("a"), make_trajectory("a", outcome=0.0)
    lost = make_trajectory("b", reward={}, finish_reason=FinishReason.TIMEOUT)
    attempts = [exported(right), exported(wrong, 1), exported(lost), exported(right, 2)]
    scores = log_of(tmp_path / "x.eval", attempts)["header.json"]["results"]["scores"]
    found = {
        (one["name"], one["reducer"]): next(iter(one["metrics"].values()))["value"]
        for one in scores
    }
    assert found == {
        ("right", "greedy"): 0.5,  # a lost one counts as wrong
        ("right", "mean"): pytest.approx((2 / 3 + 0) / 2),
        ("reward", None): pytest.approx(2 / 3),
    }


def test_a_lost_attempt_is_an_error_without_scores(tmp_path):
    lost = make_trajectory("b", reward={}, finish_reason=FinishReason.TIMEOUT)
    files = log_of(tmp_path / "x.eval", [exported(lost)])
    sample = files["samples/b_epoch_1.json"]
    assert sample["scores"] == {}
    assert "timeout" in sample["error"]["message"]
    assert files["summaries.json"][0]["error"] == sample["error"]["message"]


def test_a_failed_call_is_an_error_of_its_message(tmp_path):
    attempt = trajectory(1, "no such tool", "Paris")
    failed = (replace(attempt.tool_results[0], succeeded=False),)
    files = log_of(tmp_path / "x.eval", [exported(replace(attempt, tool_results=failed))])
    (sample,) = (content for name, content in files.items() if name.startswith("samples/"))
    (told,) = (one for one in sample["messages"] if one["role"] == "tool")
    assert (told["function"], told["error"]["message"]) == ("search", "no such tool")


def test_measured_times_are_those_of_a_sample(tmp_path):
    spans = (Span("sampling", 0.0, 1.0, 0), Span("waiting", 1.0, 3.5, 1))
    one = exported(replace(made_attempt(3, "h"), spans=spans))
    files = log_of(tmp_path / "x.eval", [one])
    for shown in (files["samples/h_epoch_1.json"], files["summaries.json"][0]):
        assert (shown["total_time"], shown["working_time"]) == (3.5, 1.0)


def test_no_gold_answer_is_in_a_log(tmp_path):
    task = make_task(gold=("secret gold",))
    assert "secret gold" not in json.dumps(
        log_of(tmp_path / "x.eval", [exported(made_attempt(3), task=task)])
    )


def test_a_log_without_attempts_has_an_empty_list(tmp_path):
    files = log_of(tmp_path / "x.eval", [])
    assert files["summaries.json"] == []
    assert files["header.json"]["results"]["scores"] == []


def test_a_reward_that_is_not_finite_is_named(tmp_path):
    broken = make_trajectory("b", reward={"outcome": float("nan")})
    with (
        pytest.raises(ArtifactError, match="task b has a log-prob or reward"),
        InspectLog(tmp_path / "x.eval") as log,
    ):
        log.add(exported(broken))


def test_the_same_attempts_give_the_same_file(tmp_path):
    for name in ("a.eval", "b.eval"):
        log_of(tmp_path / name, [exported(made_attempt(3))])
    assert (tmp_path / "a.eval").read_bytes() == (tmp_path / "b.eval").read_bytes()

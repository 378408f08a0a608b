"""Talking to a checkpoint: what is refused, and what a process that fails leaves behind."""

import sys
import time

import pytest

from espalier.records import NEWEST_CHECKPOINT, work_dir
from espalier_ui.talk import Talks
from tests.factories.viewed_run import Viewer, write_run

TALKING = (sys.executable, "-m", "tests.fakes.talking")


def add_checkpoint(run, name="trained_policy"):
    policy = run / name / "policy"
    policy.mkdir(parents=True)
    (policy / "config.json").write_text("{}")


@pytest.fixture(scope="module")
def viewer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("talks")
    write_run(folder / "runs" / "demo", steps=1)
    write_run(folder / "runs" / "bare", steps=1)
    for name in ("trained_policy", "warm_policy"):
        add_checkpoint(folder / "runs" / "demo", name)
    made = Viewer([folder / "runs"], folder)
    made.app.talks = Talks(TALKING)
    yield made
    made.app.talks.end()
    made.catalog.close()


def asked(viewer, checkpoint="trained_policy", **what):
    body = {"run": "demo", "checkpoint": checkpoint, **what}
    answer = viewer.ask("/api/chat", "POST", json=body)
    assert answer.status_code == 200, answer.text
    return settled(viewer)


def settled(viewer):
    """What was said, once nothing is being loaded or played."""
    deadline = time.monotonic() + 240
    while (found := viewer.ask("/api/chat").json())["state"] not in ("ready", "ended"):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def test_checkpoints_are_those_in_the_folder(viewer, tmp_path):
    found = viewer.get("runs/demo/checkpoints")["checkpoints"]
    assert [one["name"] for one in found] == ["warm_policy", "trained_policy"]
    assert viewer.get("runs/bare/checkpoints") == {"checkpoints": []}
    elsewhere = tmp_path / "elsewhere"
    add_checkpoint(elsewhere)
    run = viewer.catalog.get("bare").path
    (run / "trained_policy" / "policy").symlink_to(elsewhere / "trained_policy" / "policy")
    assert viewer.get("runs/bare/checkpoints") == {"checkpoints": []}


def test_a_stage_that_trains_can_be_talked_to(viewer):
    run = viewer.catalog.get("demo").path
    newest = work_dir(run / "trained_policy") / NEWEST_CHECKPOINT
    newest.parent.mkdir()
    newest.touch()
    names = [one["name"] for one in viewer.get("runs/demo/checkpoints")["checkpoints"]]
    found = asked(viewer, "trained_policy/latest", question="arguments")
    newest.unlink()
    assert names == ["warm_policy", "trained_policy", "trained_policy/latest"]
    begun = run / "warm_policy" / "policy"
    assert found["said"][-1]["answer"]["error"] == f"{run} {begun} {newest}"
    assert found["step"] == 7


def test_a_task_is_played_and_shown_with_its_gold(viewer):
    found = asked(viewer, task="t0")
    answer = found["said"][-1]["answer"]
    assert (found["run"], found["checkpoint"]) == ("demo", "trained_policy")
    assert [one["role"] for one in answer["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert (answer["gold"], answer["answer"], answer["seconds"]) == (["france"], "france", 0.5)
    assert "gold" in asked(viewer, question="which country?")["said"][-1]["answer"]


def test_another_checkpoint_has_a_process_of_its_own(viewer):
    before = asked(viewer, question="which country?")
    after = asked(viewer, "warm_policy", question="which country?")
    assert len(after["said"]) == 1 <= len(before["said"])
    assert after["checkpoint"] == "warm_policy"


@pytest.mark.parametrize(
    ("question", "told"), [("refuse", "state of their own"), ("garble", "cannot be read")]
)
def test_a_question_that_fails_ends_no_conversation(viewer, question, told):
    found = asked(viewer, question=question)
    assert told in found["said"][-1]["answer"]["error"]
    assert asked(viewer, question="again")["said"][-1]["answer"]["answer"] == "france"


def test_a_process_that_dies_is_told_and_replaced(viewer):
    found = asked(viewer, question="die")
    assert found["state"] == "ended"
    assert "ended" in found["said"][-1]["answer"]["error"]
    assert asked(viewer, question="again")["state"] == "ready"


def test_a_second_question_waits_for_the_first(viewer):
    body = {"run": "demo", "checkpoint": "trained_policy", "question": "wait"}
    viewer.ask("/api/chat", "DELETE")
    assert viewer.ask("/api/chat", "POST", json=body).status_code == 200
    assert viewer.refusal("/api/chat", "POST", json=body) == (409, "busy")
    viewer.ask("/api/chat", "DELETE")
    assert viewer.ask("/api/chat").json()["state"] == "ended"


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        ({"question": "x", "task": "t0"}, (400, "bad_parameter")),
        ({}, (400, "bad_parameter")),
        ({"question": "x", "checkpoint": "../other"}, (404, "no_checkpoint")),
        ({"question": "x", "run": "none"}, (404, "no_run")),
    ],
    ids=["both", "none", "folder", "run"],
)
def test_a_question_to_nobody_is_refused(viewer, body, refused):
    whole = {"run": "demo", "checkpoint": "trained_policy", **body}
    assert viewer.refusal("/api/chat", "POST", json=whole) == refused

"""`espalier step` around a step that is small: ingesting a folder of two documents."""

import json
import signal
from pathlib import Path

import pytest

from espalier.config import Profile
from espalier.orchestration.step_runner import StepFailed, StepOrder, run_step
from espalier.records import open_artifact
from espalier.steps.refusing import TRY_AGAIN
from tests.fakes.s3_stand_in import BUCKET
from tests.integration.commands import espalier, started
from tests.integration.waiting import wait_until

RUN = f"s3://{BUCKET}/runs/r17"


@pytest.fixture(autouse=True)
def variables(s3, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def profile(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    for place in ("Lyon", "Oslo", "Riga", "Bonn"):
        (docs / f"{place}.md").write_text(f"# {place}\n{place} is a town with a river.\n")
    questions = tmp_path / "questions.jsonl"
    questions.write_text(
        "".join(
            json.dumps({"question": f"is there water in {place}?", "answer": "a river"}) + "\n"
            for place in ("Lyon", "Oslo", "Riga", "Bonn")
        )
    )
    knowledge = {"source": "folder", "path": str(docs), "questions": str(questions)}
    return Profile.model_validate({"knowledge": knowledge, "threads": 1})


def ordered(profile, tmp_path):
    given = {"stage": "ingest", "profile": profile, "run_uri": RUN, "workspace": tmp_path / "s3"}
    return StepOrder(**given)


def test_a_step_publishes_what_it_made_and_what_it_cost(s3, profile, tmp_path):
    said = []
    manifest = run_step(ordered(profile, tmp_path), said.append)
    assert manifest.producer == "ingest"
    assert json.loads(s3.objects["runs/r17/knowledge/manifest.json"][0]) == manifest.model_dump()
    notes = json.loads(s3.objects["runs/r17/steps/ingest/executor_output.json"][0])
    assert notes["artifacts"]["knowledge"]["artifacts"][0]["metadata"]["seconds"] > 0
    assert open_artifact(tmp_path / "s3" / BUCKET / "runs" / "r17" / "knowledge") == manifest

    # run again, it does nothing
    s3.requests.clear()
    s3.page = 1000
    assert run_step(ordered(profile, tmp_path / "new"), said.append) == manifest
    assert s3.methods() == {"GET": 2}  # the manifest, and a listing of its files

    # and puts back what is lost
    before = {key: stored.content for key, stored in s3.objects.items()}
    gone = [key for key in s3.objects if "knowledge/sha256/" in key][:2]
    del s3.objects[gone[0]]
    s3.objects[gone[1]] = s3.objects[gone[1]]._replace(content=b"cut")
    assert run_step(ordered(profile, tmp_path), said.append) == manifest
    assert {key: stored.content for key, stored in s3.objects.items()} == before


def test_a_refusing_step_publishes_nothing_and_keeps_its_exit_code(s3, profile, tmp_path):
    absent = profile.knowledge.model_copy(update={"path": tmp_path / "absent"})
    with pytest.raises(StepFailed) as caught:
        run_step(
            ordered(profile.model_copy(update={"knowledge": absent}), tmp_path), lambda line: None
        )
    assert caught.value.exit_code == 1
    assert s3.objects == {}


def step_without_storage():
    """`espalier step` where S3 does not answer, with little time for it."""
    # two minutes of retries are too long for a test: a child of this process has less
    script = (
        "from dataclasses import replace\n"
        "from espalier.records import patience\n"
        "from espalier.storage import settings\n"
        "found = settings.s3_settings\n"
        "short = settings.S3Retries(first_pause_s=0.01, total_s=0.05)\n"
        "settings.s3_settings = lambda given: replace(found(given), retries=short)\n"
        "patience.STEP_PATIENCE_S = 2.0\n"
        "from espalier.cli import main; main()"
    )
    return espalier("step", "ingest", "--run", RUN, "--profile", "smoke", script=script)


@pytest.mark.parametrize("under_kubeflow", [False, True])
def test_unreachable_storage_has_its_own_exit_code(monkeypatch, under_kubeflow):
    assert TRY_AGAIN not in (1, 2)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.delenv("KFP_POD_NAME", raising=False)
    if under_kubeflow:
        monkeypatch.setenv("KFP_POD_NAME", "data-to-model-train")
    done = step_without_storage()
    assert done.returncode == TRY_AGAIN
    assert "error: http://127.0.0.1:9" in done.stderr
    # a Job makes the pod again
    assert ("Tries again" in done.stderr) is under_kubeflow
    assert "Traceback" not in done.stderr


def test_a_signal_reaches_the_step_and_ends_it(tmp_path):
    options = ("--profile", "smoke", "--run", tmp_path / "run")
    process = started("step", "ingest", *options, cwd=tmp_path)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(children.read_text, process=process)
    (child, *_) = children.read_text().split()
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "143" in said
    # soon, since the machine's first process may have to reap it
    wait_until(lambda: not Path("/proc", child).exists())


def test_a_signal_while_inputs_are_fetched_ends_the_command_too(s3, tmp_path):
    """As the first process of a container, which the kernel spares every default."""
    s3.fail("GET", "manifest", "slow", times=99)
    process = started("step", "ingest", "--profile", "smoke", "--run", RUN, cwd=tmp_path)
    wait_until(lambda: s3.requests, process=process)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "143" in said
    assert "Traceback" not in said

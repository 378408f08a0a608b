"""`espalier step` around a step that is small: ingesting a folder of two documents."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from espalier.config import Profile
from espalier.orchestration.step_runner import StepFailed, StepOrder, run_step
from espalier.records import open_artifact
from espalier.steps.refusing import TRY_AGAIN
from tests.fakes.s3_stand_in import BUCKET, s3_stand_in

RUN = f"s3://{BUCKET}/runs/r17"


@pytest.fixture
def s3(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with s3_stand_in() as stand_in:
        for name, value in stand_in.environment.items():
            monkeypatch.setenv(name, value)
        yield stand_in


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
    assert notes["artifacts"]["usage"]["artifacts"][0]["metadata"]["seconds"] > 0
    assert open_artifact(tmp_path / "s3" / BUCKET / "runs" / "r17" / "knowledge") == manifest
    assert said[-1].startswith(f"ingest: wrote {RUN}/knowledge  sha256:")
    run_again_does_nothing(s3, profile, tmp_path, manifest)
    run_again_puts_back_what_is_lost(s3, profile, tmp_path, manifest)


def run_again_does_nothing(s3, profile, tmp_path, manifest):
    s3.requests.clear()
    s3.page = 1000
    said = []
    assert run_step(ordered(profile, tmp_path / "new"), said.append) == manifest
    assert s3.methods() == {"GET": 2}  # the manifest, and a listing of its files
    assert said == [f"ingest: kept {RUN}/knowledge  sha256:{manifest.content[:12]}"]


def run_again_puts_back_what_is_lost(s3, profile, tmp_path, manifest):
    before = {key: stored.content for key, stored in s3.objects.items()}
    gone = [key for key in s3.objects if "knowledge/sha256/" in key][:2]
    del s3.objects[gone[0]]
    s3.objects[gone[1]] = s3.objects[gone[1]]._replace(content=b"cut")
    said = []
    assert run_step(ordered(profile, tmp_path), said.append) == manifest
    assert f"ingest: {RUN}/knowledge has lost" in said[0]
    assert said[1].startswith("ingest: publishes them again from ")
    assert {key: stored.content for key, stored in s3.objects.items()} == before


def test_a_refusing_step_publishes_nothing_and_keeps_its_exit_code(s3, profile, tmp_path):
    absent = profile.knowledge.model_copy(update={"path": tmp_path / "absent"})
    with pytest.raises(StepFailed) as caught:
        run_step(
            ordered(profile.model_copy(update={"knowledge": absent}), tmp_path), lambda line: None
        )
    assert caught.value.exit_code == 1
    assert s3.objects == {}


def command(*arguments, cwd):
    """`espalier step` as a pod starts it."""
    return subprocess.Popen(
        [sys.executable, "-c", "from espalier.cli import main; main()", "step", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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
    return subprocess.run(
        [sys.executable, "-c", script, "step", "ingest", "--run", RUN, "--profile", "smoke"],
        capture_output=True,
        text=True,
        check=False,
    )


def test_unreachable_storage_has_its_own_exit_code(s3, profile, tmp_path, monkeypatch):
    assert TRY_AGAIN not in (1, 2)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.delenv("KFP_POD_NAME", raising=False)
    done = step_without_storage()
    assert done.returncode == TRY_AGAIN
    assert "error: http://127.0.0.1:9: could not read" in done.stderr
    assert "Tries again in" not in done.stderr, "the Job makes the pod again"
    assert "Traceback" not in done.stderr


def test_under_kubeflow_the_step_itself_tries_again(s3, profile, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("KFP_POD_NAME", "data-to-model-train")
    done = step_without_storage()
    assert done.returncode == TRY_AGAIN
    assert "Tries again in 2 s, for 2 s" in done.stderr


def test_a_signal_reaches_the_step_and_ends_it(s3, tmp_path):
    process = command("ingest", "--profile", "smoke", "--run", str(tmp_path / "run"), cwd=tmp_path)
    child = _first_child(process.pid)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert "ended with exit code 143" in process.stderr.read()
    for stream in (process.stdout, process.stderr):
        stream.close()
    assert _is_gone(child)


def _first_child(parent):
    path = f"/proc/{parent}/task/{parent}/children"
    for _ in range(1200):
        with open(path) as stream:
            if found := stream.read().split():
                return int(found[0])
        time.sleep(0.05)
    pytest.fail("the step did not start")


def _is_gone(pid):
    """Soon, since the machine's first process may have to reap it."""
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_a_signal_while_inputs_are_fetched_ends_the_command_too(s3, tmp_path):
    """As the first process of a container, which the kernel spares every default."""
    s3.fail("GET", "manifest", "slow", times=99)
    process = command("ingest", "--profile", "smoke", "--run", RUN, cwd=tmp_path)
    for _ in range(1200):
        if s3.requests:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "ingest: ended with exit code 143" in said
    assert "Traceback" not in said

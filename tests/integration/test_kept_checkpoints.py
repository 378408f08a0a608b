"""Training that is ended with its disk, and goes on from the checkpoint that was copied to S3."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from espalier.chain import STAGES
from espalier.cluster.objects.job import stage_job
from espalier.config import KubernetesConfig
from espalier.orchestration.step_runner import container_command
from espalier.records import read_manifest
from espalier.steps.profiles import named_profile
from espalier.storage import open_location
from tests.fakes.s3_stand_in import BUCKET
from tests.integration.commands import started
from tests.integration.waiting import wait_until

ROOT = Path(__file__).parents[2]
RUNS = f"s3://{BUCKET}/runs"
TINY = [
    "threads=1",
    "knowledge.max_cities=500",
    "synthesis.train_tasks=100",
    "synthesis.dev_tasks=8",
    "synthesis.heldout_tasks=8",
    "synthesis.trajectories=20",
    "policy.prestage.steps=4",
    "warm_start.steps=80",
    "warm_start.evaluate_every=2",
    "warm_start.dev_questions=4",
    "curriculum.enabled=false",
    "curriculum.candidates=50",
    "training.steps=40",
    "training.evaluate_every=1",
    "training.dev_questions=2",
    "training.tasks_per_step=2",
    "training.group_size=2",
]
"""Small, but with enough steps after the first checkpoint to be killed between them."""

UNBROKEN = """
import sys
from pathlib import Path
from espalier.determinism import prepare_environment, prepare_torch
prepare_environment()
from espalier.chain import STAGES
from espalier.config import Profile
from espalier.records import NullTracker
from tests.integration.test_kept_checkpoints import FOLDERS, read_by
profile, run = Profile.model_validate_json(sys.argv[1]), Path(sys.argv[2])
prepare_torch(profile.threads)
for name in FOLDERS:
    STAGES[name].run(profile, read_by(name, run), run / FOLDERS[name], NullTracker())
"""
"""Without a store, in one process."""

FOLDERS = {
    "ingest": "knowledge",
    "synthesize": "synthetic",
    "prepare_policy": "base_policy",
    "warm_start": "warm_policy",
    "filter_curriculum": "curriculum",
    "train": "trained_policy",
}
"""The stages that training needs; the others, which hand on what is fine, are left out."""


def read_by(stage, run):
    """The folders that a stage reads, by the name of its input."""
    handed_on = {"accepted": "synthetic", "pretrained_policy": "base_policy"}
    return {name: run / handed_on.get(name, name) for name in STAGES[stage].inputs}


UNDER_KUBEFLOW = """
import json, sys
from espalier.steps.running import run_stage
run_stage(*json.loads(sys.argv[1]), {})
"""


@pytest.fixture(scope="module")
def profile():
    return named_profile("smoke", TINY)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, profile):
    run = tmp_path_factory.mktemp("unbroken")
    subprocess.run(
        [sys.executable, "-c", UNBROKEN, profile.model_dump_json(), str(run)], check=True
    )
    return run


def tree(pid):
    """The process and its descendants, whichever sessions they are in."""
    found = [pid]
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in listing.read_text().split():
            found += tree(int(child))
    return found


def wait_for_a_checkpoint(process, s3, below):
    wait_until(
        lambda: any(key.startswith(below) and "manifest" in key for key in list(s3.objects)),
        process=process,
    )


def kill_after_a_checkpoint(process, s3, below):
    """End all of it at once, as a lost node does, when a checkpoint has been copied."""
    wait_for_a_checkpoint(process, s3, below)
    for pid in tree(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.communicate()


def suspend_after_a_checkpoint(process, s3, below):
    """End it as the kubelet does where its Job is suspended: by SIGTERM to the first process."""
    wait_for_a_checkpoint(process, s3, below)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM, said
    rules = stage_job("train", (), run_id="r1", settings=KubernetesConfig(), environment={})
    for rule in rules["spec"]["podFailurePolicy"]["rules"]:
        assert process.returncode not in rule.get("onExitCodes", {}).get("values", ())


def finished(process):
    said = "".join(process.communicate(timeout=120))
    assert process.returncode == 0, said
    return said


@pytest.mark.slow
def test_a_killed_kubeflow_step_ends_like_an_unbroken_one(s3, tmp_path, profile, unbroken):
    inputs = {name: str(path) for name, path in read_by("train", unbroken).items()}

    s3.page = 1000

    def step(pod):
        (tmp_path / pod).mkdir()
        output = str(tmp_path / pod / "trained_policy")
        given = json.dumps(["train", profile.model_dump_json(), inputs, output])
        return started(given, script=UNDER_KUBEFLOW, ESPALIER_ARTIFACTS=RUNS, **s3.environment)

    kill_after_a_checkpoint(step("one"), s3, "runs/checkpoints/train/")
    assert not (tmp_path / "one" / "trained_policy").exists()
    said = finished(step("two"))
    assert "resumes from the checkpoint of 20" in said
    expected = read_manifest(unbroken / "trained_policy").content
    assert read_manifest(tmp_path / "two" / "trained_policy").content == expected
    assert not any(key.startswith("runs/checkpoints/") for key in s3.objects)
    said = finished(step("three"))
    assert "kept from an earlier run" in said
    assert read_manifest(tmp_path / "three" / "trained_policy").content == expected


@pytest.mark.slow
@pytest.mark.parametrize("end", [kill_after_a_checkpoint, suspend_after_a_checkpoint])
def test_an_ended_job_goes_on_like_an_unbroken_one(s3, tmp_path, profile, unbroken, end):
    s3.page = 1000
    run = f"{RUNS}/r17"
    for name, path in read_by("warm_start", unbroken).items():
        open_location(f"{run}/{name}", s3.environment).publish(path)

    def step(pod):
        command = container_command("warm_start", profile, run)
        return started(*command[1:], "--workspace", tmp_path / pod, **s3.environment)

    end(step("one"), s3, "runs/r17/steps/warm_start/checkpoint/")
    assert "runs/r17/warm_policy/manifest.json" not in s3.objects
    said = finished(step("two"))
    assert "resumes from the checkpoint of 20" in said
    expected = read_manifest(unbroken / "warm_policy").content
    made = open_location(f"{run}/warm_policy", s3.environment).manifest()
    assert made is not None
    assert made.content == expected
    assert not any("/checkpoint/" in key for key in s3.objects)

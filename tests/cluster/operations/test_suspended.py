"""A training that is suspended in the middle and resumed, as Kueue does it to Jobs by preemption.

    python -m tests.cluster up
    python -m tests.cluster run python -m pytest -q tests/cluster/operations/test_suspended.py

The Job of `train` is suspended by `spec.suspend` once its first checkpoint is in S3. Its pod is
told to end, and is gone with its disk. That is no failed attempt: nothing counts against
`backoffLimit`, and no exit code of it looks like a refusal. The pod that comes after the
resumption goes on from the checkpoint.
"""

import json
import os
import secrets
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from espalier.chain import CHAIN
from espalier.records import open_artifact
from espalier.storage import open_location
from espalier.storage.expiring import open_expiring
from tests.cluster.chain import ClusterRun, wake_servers
from tests.cluster.parts import kubectl
from tests.cluster.places import places
from tests.unit.k8s.allowed_verbs import PIPELINE

STEPS = 30
SETTINGS = (
    "knowledge.max_cities=500",
    "synthesis.train_tasks=100",
    "synthesis.dev_tasks=8",
    "synthesis.heldout_tasks=8",
    "synthesis.trajectories=20",
    "policy.prestage.steps=4",
    "warm_start.steps=8",
    "warm_start.dev_questions=4",
    "curriculum.enabled=false",
    "curriculum.candidates=50",
    f"training.steps={STEPS}",
    "training.evaluate_every=2",
    "training.dev_questions=4",
    "training.tasks_per_step=2",
    "training.group_size=4",
)
"""Small, with enough steps after the first checkpoint, and too few to stop for want of credit."""
_STAGE_S = 900
_SOON_S = 120
_POLL_S = 0.5


@pytest.fixture(scope="module")
def suspended(own_cluster):
    """A training that was suspended once: its Job while it was and at its end, log and history."""
    cluster = places()
    wake_servers(cluster)
    # work of its own: what an earlier run of this test has kept would be fetched
    run = ClusterRun(cluster, "smoke", (*SETTINGS, f"seed={secrets.randbelow(1 << 30)}"))
    for link in CHAIN[: [link.name for link in CHAIN].index("train")]:
        run.wait(link.name, run.start(link.name), _STAGE_S)
    job = run.start("train")
    checkpoint = f"{run.uri}/steps/train/checkpoint"
    _until(lambda: open_expiring(checkpoint, os.environ).manifest(), _STAGE_S)
    _suspend(job, "true")
    _until(lambda: not _pods(job), _SOON_S)
    while_suspended = _read(job)
    _suspend(job, "false")
    run.wait("train", job, _STAGE_S)
    log = _ask("logs", f"job/{job}")
    return while_suspended, _read(job), log, _history(run.uri)


@pytest.mark.slow
def test_a_suspension_is_no_failed_attempt(suspended):
    while_suspended, ended, _, _ = suspended
    assert _conditions(while_suspended) == {"Suspended": "True"}
    for job in (while_suspended, ended):
        assert job["status"].get("failed", 0) == 0, job["status"]
    assert _conditions(ended)["Complete"] == "True"
    assert "Failed" not in _conditions(ended)


@pytest.mark.slow
def test_a_resumed_training_goes_on_from_its_checkpoint(suspended):
    _, _, log, history = suspended
    assert "resumes from the checkpoint of" in log
    assert history.column("step").to_pylist() == list(range(1, STEPS + 1))


def _conditions(job):
    return {entry["type"]: entry["status"] for entry in job["status"].get("conditions", ())}


def _suspend(job, value):
    _ask("patch", f"job/{job}", "--patch", f'{{"spec": {{"suspend": {value}}}}}')


def _read(job):
    return json.loads(_ask("get", f"job/{job}", "--output=json"))


def _pods(job):
    return _ask("get", "pods", f"--selector=job-name={job}", "--output=name").split()


def _history(uri):
    with tempfile.TemporaryDirectory() as folder:
        artifact = Path(folder, "trained_policy")
        open_location(f"{uri}/trained_policy", os.environ).fetch(artifact)
        open_artifact(artifact)
        return pq.read_table(artifact / "history.parquet")


def _ask(*arguments):
    done = kubectl(places(), f"--namespace={PIPELINE}", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _until(condition, within_s):
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(_POLL_S)

"""A training run whose cluster breaks under it, again and again, and what is left of the run.

    python -m tests.cluster up
    python -m tests.cluster faults --seed 0

Arithmetic stories with programs in sandbox pods. While the trainer's Job runs: S3 is away for half
a minute from the moment the Job is made, thirty random sandbox pods are deleted, containerd is
killed, the API server is restarted, and the trainer's own pod is killed. Then the run goes on to
its registered model. It ends well when every stage ended, every step of training is in the history
once, no sandbox or lease is left, and all of that happened to it. How many episodes were lost is
told.
"""

import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from espalier.chain import CHAIN
from espalier.records import open_artifact
from espalier.storage import open_location
from tests.cluster import objects, parts, processes
from tests.cluster.chain import SANDBOXES_IN_PODS, ClusterRun, wake_servers
from tests.cluster.parts import kubectl
from tests.cluster.places import ClusterError
from tests.unit.k8s.allowed_verbs import PIPELINE, SANDBOXES

DELETIONS = 30
KILL_CONTAINERD_AT, RESTART_API_AT, KILL_TRAINER_AT = 8, 16, 24
S3_AWAY_S = 30
STEPS = 60
CLAIM = "espalier-workspace"
"""Keeps the checkpoints of a trainer whose pod is lost."""
_SETTINGS = (
    *SANDBOXES_IN_PODS,
    f'kubernetes.workspace_claim="{CLAIM}"',
    f"training.steps={STEPS}",
    "training.evaluate_every=5",
    "training.tasks_per_step=4",
    # enough for a policy that calls its tool, so that there are programs to be hit
    "synthesis.trajectories=60",
    "policy.prestage.steps=120",
    "warm_start.steps=120",
)
_STAGE_S = 1200
_LEASE_S = 180
_POLL_S = 0.5


class Outcome(NamedTuple):
    """What the run came to."""

    deleted: int
    trainer_pods: int
    """One that was killed, and one that went on, at least."""
    steps: list[int]
    lost_episodes: int
    left: list[str]
    """Sandboxes and leases that nobody owns any more."""

    @property
    def is_well(self):
        happened = self.deleted == DELETIONS and self.trainer_pods > 1
        return happened and self.steps == list(range(1, STEPS + 1)) and not self.left


def run_with_faults(places, say, *, seed):
    """The run, from its first stage to its registered model.

    Raises:
        ClusterError: a stage failed, or a part of the cluster does not come back.
    """
    wake_servers(places)
    _make_claim(places)
    run = ClusterRun(places, "arithmetic-smoke", _SETTINGS)
    for link in CHAIN:
        stop_s3 = link.name == "train"
        if stop_s3:
            _scale_s3(places, 0)
        job = run.start(link.name)
        if stop_s3:
            time.sleep(S3_AWAY_S)
            _scale_s3(places, 1)
            trainers = set(_names(places, PIPELINE, "pods", f"job-name={job}"))
            deleted = _break(places, job, random.Random(seed), say)
        run.wait(link.name, job, _STAGE_S)
        say(f"{link.name} ended")
        if stop_s3:
            trainers |= set(_names(places, PIPELINE, "pods", f"job-name={job}"))
    history = history_of(run.uri)
    return Outcome(
        deleted=deleted,
        trainer_pods=len(trainers),
        steps=history.column("step").to_pylist(),
        lost_episodes=sum(history.column("lost_episodes").to_pylist()),
        left=_left(places, run.run_id),
    )


def _break(places, job, rng, say):
    """Everything that happens to the cluster while the trainer runs; gives the pods deleted."""
    deleted = 0
    while deleted < DELETIONS:
        selector = "app.kubernetes.io/name=espalier-sandbox"
        pods = _names(places, SANDBOXES, "pods", selector, "status.phase=Running")
        if _has_ended(places, job):
            say(f"training ended after {deleted} deletions")
            return deleted
        if pods:
            _ask(places, SANDBOXES, "delete", rng.choice(pods), "--wait=false", "--grace-period=0")
            deleted += 1
            _at(places, job, deleted, say)
        # some get to work in between: a pool that loses all that it makes backs off
        time.sleep(rng.uniform(2.0, 10.0))
    return deleted


def _at(places, job, deleted, say):
    """The faults that happen once."""
    if deleted == KILL_CONTAINERD_AT:
        say("containerd is killed")
        processes.stop(places, "containerd", grace_s=0.0)
        parts.start_containerd(places)
    elif deleted == RESTART_API_AT:
        say("the API server is restarted")
        processes.stop(places, "apiserver", grace_s=0.0)
        time.sleep(5.0)
        parts.start_api_server(places)
    elif deleted == KILL_TRAINER_AT:
        say("the trainer's pod is killed")
        (pod,) = _names(places, PIPELINE, "pods", f"job-name={job}", "status.phase=Running")
        _ask(places, PIPELINE, "delete", pod, "--wait=false", "--grace-period=0", "--force")


def _make_claim(places):
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM, "namespace": PIPELINE},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "20Gi"}},
            "volumeName": CLAIM,
        },
    }
    objects.apply(places, [objects.volume(places, CLAIM), claim])


def _scale_s3(places, replicas):
    _ask(places, PIPELINE, "scale", "deployment/espalier-minio", f"--replicas={replicas}")


def history_of(uri):
    """As training published it; the artifact's digests are checked on the way."""
    with tempfile.TemporaryDirectory() as folder:
        artifact = Path(folder, "trained_policy")
        open_location(f"{uri}/trained_policy", os.environ).fetch(artifact)
        open_artifact(artifact)
        return pq.read_table(artifact / "history.parquet")


def _left(places, run_id):
    """What is left of the run's sandboxes once its leases have run out and the collector came."""
    time.sleep(_LEASE_S)
    job = f"collect-{run_id}"
    _ask(places, PIPELINE, "create", "job", job, "--from=cronjob/espalier-sandbox-gc")
    _ask(places, PIPELINE, "wait", f"job/{job}", "--for=condition=Complete", "--timeout=120s")
    end = time.monotonic() + 60
    selector = "app.kubernetes.io/name=espalier-sandbox"
    while left := _names(places, SANDBOXES, "pods,leases", selector):
        if time.monotonic() > end:
            return left
        time.sleep(_POLL_S)
    return []


def _has_ended(places, job):
    status = json.loads(_ask(places, PIPELINE, "get", f"job/{job}", "--output=json"))["status"]
    return bool(status.get("conditions"))


def _names(places, namespace, kinds, selector, field=""):
    said = _ask(
        places, namespace, "get", kinds, f"--selector={selector}", "--output=name",
        *([f"--field-selector={field}"] if field else []),
    )  # fmt: skip
    return said.split()


def _ask(places, namespace, *arguments):
    """The API server may be away for a moment, which is the point: it is asked again."""
    end = time.monotonic() + 60
    while True:
        done = kubectl(places, f"--namespace={namespace}", *arguments)
        if done.returncode == 0 or "NotFound" in done.stderr:
            return done.stdout
        if time.monotonic() > end:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()[-600:]}")
        time.sleep(_POLL_S)

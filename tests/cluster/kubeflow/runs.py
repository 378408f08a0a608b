"""Pipelines of espalier on the real Kubeflow: submitted, followed, and what came of them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx2

from tests.cluster.chain import ON_ONE_NODE
from tests.cluster.kubeflow import manifests
from tests.cluster.parts import kubectl
from tests.cluster.places import places
from tests.unit.k8s.allowed_verbs import PIPELINE, SANDBOXES

ACCOUNT = "espalier-kubeflow"
SMALL = (
    "policy.prestage.steps=40",
    "warm_start.steps=4",
    "warm_start.evaluate_every=4",
    "training.steps=2",
    "training.evaluate_every=2",
    "training.tasks_per_step=2",
    "synthesis.train_tasks=400",
    "synthesis.trajectories=40",
    "curriculum.candidates=20",
    "registry.min_questions=500",
)
"""Of the smoke profile: every stage does its work, and little of it."""
IS_MULTI_USER = "ESPALIER_TEST_KUBEFLOW_NAMESPACE" in os.environ
NAMESPACE = PIPELINE if IS_MULTI_USER else manifests.NAMESPACE
"""Of the pods of runs."""
SETTINGS = (
    *ON_ONE_NODE,
    f"kubernetes.{'kubeflow.namespace' if IS_MULTI_USER else 'pipeline_namespace'}={NAMESPACE}",
    f"kubernetes.kubeflow.service_account={ACCOUNT}",
)
LEASE_S = 180
"""Of the sandboxes of a run that nobody renews any more."""
ENDED = {"SUCCEEDED", "FAILED", "CANCELED", "SKIPPED"}
_POLL_S = 1.0


class Kubeflow:
    """Its API as a browser or any other client asks it, beside what the command line says."""

    def __init__(self, endpoint, token=None):
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self.client = httpx2.Client(base_url=endpoint, headers=headers, timeout=60)

    def get(self, path, **query):
        """The JSON of an answer, which has to be a good one."""
        return self._json(self.client.get(f"/apis/v2beta1/{path}", params=query))

    def post(self, path, content=None):
        """As `get`."""
        return self._json(self.client.post(f"/apis/v2beta1/{path}", json=content))

    def upload(self, path, **query):
        """As `get`, of a compiled pipeline that is uploaded."""
        file = {"uploadfile": (path.name, path.read_bytes())}
        return self._json(
            self.client.post("/apis/v2beta1/pipelines/upload", params=query, files=file)
        )

    def run(self, run_id):
        """The run as its page shows it."""
        return self.get(f"runs/{run_id}")

    def wait(self, run_id, *, until=ENDED, within_s):
        """The run, once its state is one of `until`."""
        end = time.monotonic() + within_s
        while (run := self.run(run_id)).get("state") not in until:
            assert time.monotonic() < end, (run.get("state"), tasks(run))
            time.sleep(_POLL_S)
        return run

    @staticmethod
    def _json(answer):
        assert answer.is_success, f"{answer.request.url}: {answer.status_code} {answer.text[:2000]}"
        return answer.json()


def tasks(run):
    """Stage -> state, of a run's steps that are stages, in the order in which they began."""
    found = run.get("run_details", {}).get("task_details", [])
    steps = [one for one in found if not one["display_name"].endswith(("driver", "executor"))]
    steps.sort(key=lambda one: one.get("start_time") or "")
    return {one["display_name"]: one.get("state") for one in steps}


def submitted(*settings, profile="smoke", small=SMALL, name="test"):
    """Id of a run that `espalier submit` started."""
    words = [f"--set={setting}" for setting in (*SETTINGS, *small, *settings)]
    done = espalier("submit", f"--profile={profile}", f"--name={name}", *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["run_id"]


def of_runs(action, run_id, *options):
    """`espalier runs ACTION`; what it printed, as it has to succeed."""
    done = espalier("runs", action, run_id, *options, *(f"--set={one}" for one in SETTINGS))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def espalier(*words, **options):
    """The command line, as a user has it."""
    command = [Path(sys.executable).with_name("espalier"), *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ, **options
    )


def objects_of(run_id, kind="pods"):
    """What Kubernetes has of a run."""
    found = kubectl(
        places(), f"--namespace={NAMESPACE}", "get", kind, f"--selector=pipeline/runid={run_id}",
        "--output=json",
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)["items"]


def pod_of(run_id, stage, *, within_s=600, besides=()):
    """Name of the pod that runs a stage's command, once it has come to that.

    Args:
        run_id: of the run.
        stage: its name.
        within_s: how long to wait.
        besides: pods of earlier attempts, which may live a little longer.
    """
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        for pod in objects_of(run_id):
            name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
            is_running = pod["status"]["phase"] == "Running"
            if labels.get("espalier.dev/stage") == stage and is_running and name not in besides:
                return name
        time.sleep(_POLL_S)
    raise AssertionError(f"no pod of {stage} runs after {within_s} s")


def log_of(pod, *, container="main"):
    """What a pod printed."""
    done = kubectl(places(), f"--namespace={NAMESPACE}", "logs", pod, f"--container={container}")
    return done.stdout or done.stderr


def running(run_id):
    """Pods of a run that run."""
    return [pod for pod in objects_of(run_id) if pod["status"]["phase"] == "Running"]


def sandboxes(kinds):
    """Names of what is in the sandbox namespace, of anybody."""
    found = kubectl(places(), f"--namespace={SANDBOXES}", "get", kinds, "--output=name")
    assert found.returncode == 0, found.stderr
    return found.stdout.split()


def no_sandbox_is_left():
    """A stage that had no time to delete its own leaves them to their lease and the collector."""
    if not sandboxes("pods,leases"):
        return True
    job = f"collect-{time.monotonic_ns()}"
    collect = ("create", "job", job, "--from=cronjob/espalier-sandbox-gc")
    wait = ("wait", f"job/{job}", "--for=condition=Complete", "--timeout=120s")
    for words in (collect, wait):
        done = kubectl(places(), f"--namespace={PIPELINE}", *words)
        assert done.returncode == 0, done.stderr
    return False


def wait_until(holds, otherwise, within_s=240):
    """What `holds` gives, once that is something; after `within_s` a failure that says why."""
    end = time.monotonic() + within_s
    while not (found := holds()):
        assert time.monotonic() < end, otherwise
        time.sleep(_POLL_S)
    return found

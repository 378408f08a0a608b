"""The whole chain as plain Jobs, one stage after the other, with S3 in between and MLflow beside.

What Kubeflow would do, by hand: each Job is `stage_job`, and it is created as the account
that runners have. A stage's Job is made when the one before it has ended.
"""

import json
import secrets
import time
from datetime import datetime
from typing import NamedTuple

import yaml

from espalier.chain import CHAIN
from espalier.cluster.objects.job import stage_job
from espalier.orchestration.step_runner import container_command
from espalier.steps.profiles import named_profile
from tests.cluster import objects, sandbox_images
from tests.cluster.images import PIPELINE as IMAGE
from tests.cluster.parts import kubectl
from tests.cluster.places import ClusterError
from tests.unit.k8s.allowed_verbs import PIPELINE

RUNNER = f"system:serviceaccount:{PIPELINE}:espalier-step-runner"
BUCKET = "espalier"
ON_ONE_NODE = (
    f'kubernetes.images.cpu="{IMAGE}"',
    f'kubernetes.images.train="{IMAGE}"',
    'kubernetes.resources.cpu_request="500m"',
)
SANDBOXES_IN_PODS = (
    f'environment.sandbox={{backend="kubernetes", image="{sandbox_images.PYTHON}", size=2}}',
)
"""For profiles whose agent runs programs; the whole table, as backends have keys of their own."""
_SERVERS_S = 300
_POLL_S = 0.5


class StageTimes(NamedTuple):
    """Of one stage's Job, in seconds since the first Job was created."""

    stage: str
    created: float
    started: float
    ended: float


class ClusterRun:
    """A run of one profile on the cluster, stage by stage."""

    def __init__(self, places, profile, overrides=()):
        self._places = places
        self.settings = named_profile(profile, (*ON_ONE_NODE, *overrides))
        self.run_id = f"chain-{secrets.token_hex(3)}"
        self.uri = f"s3://{BUCKET}/runs/{self.run_id}"
        self._begin = None

    def start(self, stage):
        """Create the Job of a stage; gives its name."""
        job = stage_job(
            stage,
            container_command(stage, self.settings, self.uri),
            run_id=self.run_id,
            settings=self.settings.kubernetes,
            environment={"MLFLOW_EXPERIMENT_NAME": self.run_id},
        )
        _as_runner(self._places, "create", "--filename=-", stdin=yaml.safe_dump(job))
        return job["metadata"]["name"]

    def wait(self, stage, name, within_s):
        """Wait until a stage's Job is complete; gives its times.

        Raises:
            ClusterError: it failed, or its time is up, with the end of its log.
        """
        ended = _wait(self._places, name, within_s)
        self._begin = self._begin or _seconds(ended["metadata"]["creationTimestamp"])
        return _times(self._places, stage, ended, self._begin)

    def now(self):
        """Seconds since the first Job was created."""
        return time.time() - self._begin


def run_chain(places, say, *, profile="smoke", overrides=(), stage_s=3600):
    """Run every stage of a profile on the cluster.

    Args:
        places: of the cluster.
        say: told each stage's times as it ends.
        profile: of the run.
        overrides: further settings of it.
        stage_s: seconds that one stage may take.

    Returns:
        The run, and the time-line.

    Raises:
        ClusterError: a stage failed, with the end of its log.
    """
    wake_servers(places)
    run = ClusterRun(places, profile, overrides)
    times = []
    for link in CHAIN:
        times.append(run.wait(link.name, run.start(link.name), stage_s))
        say(times[-1])
    return run, times


def wake_servers(places):
    """S3 and MLflow, where every stage's artifacts and figures go."""
    objects.wake(places, "espalier-minio", "espalier-mlflow", timeout_s=_SERVERS_S)


def _wait(places, name, within_s):
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        job = json.loads(_as_runner(places, "get", "job", name, "--output=json"))
        done = {entry["type"] for entry in job["status"].get("conditions", ())}
        if "Complete" in done:
            return job
        if "Failed" in done:
            raise ClusterError(f"{name} failed: {_log(places, name)}")
        time.sleep(_POLL_S)
    raise ClusterError(f"{name} not done after {within_s} s: {_log(places, name)}")


def _times(places, stage, job, begin):
    pods = json.loads(
        _as_runner(
            places,
            *("get", "pods", f"--selector=job-name={job['metadata']['name']}", "--output=json"),
        )
    )
    # others of the Job are of tries that were lost
    (ended,) = [pod for pod in pods["items"] if pod["status"]["phase"] == "Succeeded"]
    states = [entry["state"]["terminated"] for entry in ended["status"]["containerStatuses"]]
    return StageTimes(
        stage,
        _seconds(job["metadata"]["creationTimestamp"]) - begin,
        _seconds(states[0]["startedAt"]) - begin,
        _seconds(job["status"]["completionTime"]) - begin,
    )


def _log(places, name):
    said = kubectl(places, f"--namespace={PIPELINE}", "logs", f"job/{name}", "--tail=40")
    return (said.stdout or said.stderr).strip()


def _as_runner(places, *arguments, stdin=None):
    done = kubectl(places, f"--namespace={PIPELINE}", f"--as={RUNNER}", *arguments, stdin=stdin)
    if done.returncode != 0:
        raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def _seconds(moment):
    return datetime.fromisoformat(moment).timestamp()

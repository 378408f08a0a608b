"""A registered version's way into service: promoted by its gate, rolled out, and asked."""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import httpx2

from espalier.cluster.objects.serving import DEPLOYMENT
from tests.cluster.chain import StageTimes
from tests.cluster.objects import serving_key
from tests.cluster.parts import kubectl
from tests.cluster.places import ClusterError
from tests.unit.k8s.allowed_verbs import PIPELINE

CONTROLLER = "espalier-serving-controller"
NUM_TOKENS = 4
_ROLL_S = 900
_POLL_S = 1.0


@contextmanager
def forwarded(service, port):
    """A service of the pipeline on loopback; for processes in the cluster's network."""
    command = [
        "kubectl", f"--namespace={PIPELINE}", "port-forward", f"svc/{service}", f"{port}:{port}",
    ]  # fmt: skip
    with _kept_going(command):
        yield f"http://localhost:{port}"


@contextmanager
def _kept_going(command):
    """A `kubectl port-forward`, begun again when it ends, as it does where a client hangs up."""
    ended = threading.Event()

    def begun():
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def keep(forwarding):
        while not ended.wait(0.2):
            if forwarding.poll() is not None:
                forwarding.stdout.close()
                forwarding = begun()
        forwarding.terminate()
        forwarding.wait()
        forwarding.stdout.close()

    first = begun()
    assert "Forwarding" in first.stdout.readline()
    keeper = threading.Thread(target=keep, args=[first])
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()


@contextmanager
def awake(places):
    """Serving and its controller, with a pod each as far as there is something to serve."""
    _scale(places, 1)
    try:
        yield
    finally:
        _scale(places, 0)


@contextmanager
def forgotten(places):
    """Serving and its controller, which forgets afterwards what was served: the next is a first."""
    with awake(places):
        yield
    notes = [f"espalier.dev/{name}-" for name in ("last-good", "failed", "failed-reason")]
    arguments = ("annotate", f"deployment/{DEPLOYMENT}", *notes)
    done = kubectl(places, f"--namespace={PIPELINE}", *arguments)
    if done.returncode != 0:
        raise ClusterError(f"kubectl annotate: {done.stderr.strip()}")


def answered(places, url, model):
    """The version that is served; it answers a prompt.

    Raises:
        ClusterError: it answers without a key, or with too few or too many tokens.
    """
    refused = httpx2.get(f"{url}/v1/models", timeout=60)
    if refused.status_code != httpx2.codes.UNAUTHORIZED:
        raise ClusterError(f"asked without a key, HTTP {refused.status_code} came")
    headers = {"authorization": f"Bearer {serving_key(places)}"}
    listed = httpx2.get(f"{url}/v1/models", headers=headers, timeout=60).json()["data"]
    asked = {"model": model, "prompt": [20, 21], "max_tokens": NUM_TOKENS}
    answer = httpx2.post(f"{url}/v1/completions", json=asked, headers=headers, timeout=60).json()
    num_tokens = answer["usage"]["completion_tokens"]  # sampled: it may end its answer early
    if not 1 <= num_tokens <= NUM_TOKENS:
        raise ClusterError(f"asked for {NUM_TOKENS} tokens at most, {num_tokens} came")
    return listed[0]["version"]


def promote_and_serve(places, run, say):
    """Promote what a run registered, as a user does, and wait until it is served and answers.

    Args:
        places: of the cluster.
        run: a `ClusterRun` that has ended.
        say: told the times of both, as of stages.

    Raises:
        ClusterError: the gate refuses, or the roll-out does not end.
    """
    model = run.settings.model_name
    with awake(places):
        began = run.now()
        version = _promoted(model)
        say(StageTimes("promote", began, began, run.now()))
        began = run.now()
        wait_until_served(places, version)
        say(StageTimes("serve", began, began, run.now()))
        with forwarded(DEPLOYMENT, 8000) as url:
            if (served := answered(places, url, model)) != version:
                raise ClusterError(f"asked for version {version}, and {served} answered")


def _promoted(model):
    promotion = json.loads(outside("promote", model, "--json"))
    print(f"promoted: {json.dumps(promotion)}", flush=True)
    return promotion["version"]


def outside(*words):
    """What an espalier command prints to a user who reaches MLflow alone, and no S3.

    Raises:
        ClusterError: it failed.
    """
    code = "from espalier.cli import main; main()"
    with forwarded("espalier-mlflow", 5000) as uri:
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            env={**os.environ, "MLFLOW_TRACKING_URI": uri},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise ClusterError(f"espalier {' '.join(words)}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def wait_until_served(places, version):
    """Until the controller has found a version good that it rolled out.

    Raises:
        ClusterError: it did not within a quarter of an hour.
    """
    path = r"--output=jsonpath={.metadata.annotations.espalier\.dev/last-good}"
    end = time.monotonic() + _ROLL_S
    while time.monotonic() < end:
        asked = kubectl(places, f"--namespace={PIPELINE}", "get", f"deployment/{DEPLOYMENT}", path)
        if asked.stdout == version:
            return
        time.sleep(_POLL_S)
    raise ClusterError(f"version {version} is not served after {_ROLL_S} s")


def _scale(places, replicas):
    names = [f"deployment/{name}" for name in (DEPLOYMENT, CONTROLLER)]
    done = kubectl(places, f"--namespace={PIPELINE}", "scale", *names, f"--replicas={replicas}")
    if done.returncode != 0:
        raise ClusterError(f"kubectl scale: {done.stderr.strip()}")


def mlflow_runs():
    """All runs of the cluster's MLflow; for processes in the cluster's network."""
    from mlflow import MlflowClient

    with forwarded("espalier-mlflow", 5000) as uri:
        client = MlflowClient(uri)
        return client.search_runs([one.experiment_id for one in client.search_experiments()])

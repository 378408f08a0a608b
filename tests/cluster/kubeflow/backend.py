"""Kubeflow Pipelines on a cluster that is up, and the way to its API."""

import json
import subprocess
import sys
import time
from contextlib import contextmanager

from tests.cluster import cluster, objects
from tests.cluster.chain import wake_servers
from tests.cluster.images import PIPELINE as PIPELINE_IMAGE
from tests.cluster.kubeflow import images, manifests, pages, servers, sources
from tests.cluster.network import inside
from tests.cluster.parts import kubectl
from tests.cluster.places import ClusterError
from tests.unit.k8s.allowed_verbs import PIPELINE

_DEPLOYMENTS = (
    "workflow-controller", manifests.API_SERVER, "ml-pipeline-persistenceagent",
    "ml-pipeline-scheduledworkflow",
)  # fmt: skip
_READY_S = 300
_HEALTHY_S = 30
S3_SECRET = "espalier-s3"
AUDIENCE = "pipelines.kubeflow.org"
"""What a token has to be made for, so that Kubeflow's API server takes it."""


def build(places, checkouts, say):
    """Build what is not kept yet of its programs."""
    sources.build(checkouts, sources.kept_in(places), say)
    if reason := pages.missing():
        print(f"without its pages: {reason}", flush=True)
    else:
        pages.build(checkouts, sources.kept_in(places), say)


def up(places, checkouts, mode, say):
    """Install Kubeflow Pipelines, and wait until its API answers.

    Args:
        places: of a cluster that is up.
        checkouts: from `sources.found_in`.
        mode: one of `manifests.MODES`.
        say: told what took how many seconds.

    Raises:
        ClusterError: a part does not start, with what it said.
    """
    started = time.monotonic()
    for program, content in images.archives(checkouts, sources.kept_in(places)):
        path = places.state / f"{program}.tar"
        path.write_bytes(content)
        cluster.import_image(places, path)
        path.unlink()
    say("Kubeflow's images", time.monotonic() - started)
    started = time.monotonic()
    servers.start(places)
    say("database, metadata, S3", time.monotonic() - started)
    started = time.monotonic()
    for those in manifests.rendered(places, checkouts, mode):
        objects.apply(places, those)
    if mode == manifests.SINGLE_USER:
        _copy_s3_keys(places)
    objects.apply_asleep(places, manifests.overlay(places, mode))
    wake_servers(places)
    _wait(places)
    say("Kubeflow Pipelines", time.monotonic() - started)


def mode_of(places):
    """The mode in which it was installed; None where it was not."""
    found = kubectl(
        places, "get", "configmap", manifests.CONFIG, f"--namespace={manifests.NAMESPACE}",
        "--output=json",
    )  # fmt: skip
    if found.returncode != 0:
        return None
    return json.loads(found.stdout)["metadata"]["labels"][manifests.MODE_LABEL]


@contextmanager
def plugins(places, settings):
    """Within the block, the API server has settings of plugins.

    Args:
        places: of the cluster.
        settings: by the name of the plugin (backend/src/apiserver/plugins/config.go).
    """
    config = _kubectl(
        places, "get", "configmap", manifests.CONFIG,
        f"--output=go-template={{{{index .data {json.dumps(manifests.CONFIG_FILE)}}}}}",
    )  # fmt: skip
    _configure(places, {**json.loads(config), "plugins": settings})
    try:
        yield
    finally:
        _configure(places, json.loads(config))


def _configure(places, config):
    patch = {"data": {manifests.CONFIG_FILE: json.dumps(config)}}
    _kubectl(places, "patch", "configmap", manifests.CONFIG, f"--patch={json.dumps(patch)}")
    _kubectl(places, "rollout", "restart", f"deployment/{manifests.API_SERVER}")
    _wait(places)


def _kubectl(places, *arguments):
    done = kubectl(places, f"--namespace={manifests.NAMESPACE}", *arguments)
    if done.returncode != 0:
        raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def endpoint(places):
    """Address of the API, from within the cluster's network."""
    return f"http://{_address(places, 'ml-pipeline')}:8888"


def pages_url(places):
    """Address of the pages, from within the cluster's network."""
    return f"http://{_address(places, manifests.PAGES)}"


def _address(places, service):
    found = kubectl(
        places, f"--namespace={manifests.NAMESPACE}", "get", "service", service,
        "--output=jsonpath={.spec.clusterIP}",
    )  # fmt: skip
    if found.returncode != 0:
        raise ClusterError(f"{service} of Kubeflow has no address: {found.stderr.strip()}")
    return found.stdout


def token(places, account, namespace, *, seconds=7200):
    """A token by which the API knows an account."""
    made = kubectl(
        places, f"--namespace={namespace}", "create", "token", account,
        f"--audience={AUDIENCE}", f"--duration={seconds}s",
    )  # fmt: skip
    if made.returncode != 0:
        raise ClusterError(f"no token for {account}: {made.stderr.strip()}")
    return made.stdout.strip()


def environment(places):
    """Of what runs beside it: where the API is, and who asks."""
    shown = {"ESPALIER_TEST_KUBEFLOW_PAGES": pages_url(places)} if has_pages(places) else {}
    anybody = {
        **shown,
        "ESPALIER_TEST_KUBEFLOW": endpoint(places),
        "ESPALIER_TEST_KUBEFLOW_IMAGE": PIPELINE_IMAGE,
        "KF_PIPELINES_ENDPOINT": endpoint(places),
    }
    if mode_of(places) == manifests.SINGLE_USER:
        return anybody
    return {
        **anybody,
        "ESPALIER_TEST_KUBEFLOW_NAMESPACE": PIPELINE,
        "KF_PIPELINES_TOKEN": token(places, manifests.RUNNER, PIPELINE),
    }


def _copy_s3_keys(places):
    """As k8s/README.md tells a user: steps in Kubeflow's namespace read them there."""
    found = kubectl(places, "get", "secret", S3_SECRET, f"--namespace={PIPELINE}", "--output=json")
    if found.returncode != 0:
        raise ClusterError(f"no secret {S3_SECRET}: {found.stderr.strip()}")
    described = {"name": S3_SECRET, "namespace": manifests.NAMESPACE}
    copy = {"apiVersion": "v1", "kind": "Secret", "metadata": described}
    objects.apply(places, [{**copy, "data": json.loads(found.stdout)["data"]}])


def has_pages(places):
    """Whether its pages were installed."""
    found = kubectl(
        places, "get", "deployment", manifests.PAGES, f"--namespace={manifests.NAMESPACE}"
    )
    return found.returncode == 0


def _wait(places):
    shown = [manifests.PAGES] if has_pages(places) else []
    for name in (*_DEPLOYMENTS, *shown):
        done = kubectl(
            places, f"--namespace={manifests.NAMESPACE}", "rollout", "status",
            f"deployment/{name}", f"--timeout={_READY_S}s",
        )  # fmt: skip
        if done.returncode != 0:
            log = kubectl(
                places, f"--namespace={manifests.NAMESPACE}", "logs", f"deployment/{name}",
                "--tail=20",
            )  # fmt: skip
            said = (log.stdout or log.stderr).strip()
            raise ClusterError(f"{name} is not ready: {done.stderr.strip()}\n{said}")
    _wait_for_health(places)


def _wait_for_health(places):
    """Its service may lead to a pod that has ended for a moment."""
    url = f"{endpoint(places)}/apis/v2beta1/healthz"
    asked = f"import urllib.request; urllib.request.urlopen('{url}', timeout=5)"
    end = time.monotonic() + _HEALTHY_S
    while True:
        done = subprocess.run(
            inside(sys.executable, "-c", asked), capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return
        if time.monotonic() > end:
            said = done.stderr.strip().rpartition("\n")[2]
            raise ClusterError(f"Kubeflow's API is ready and does not answer: {said}")
        time.sleep(1)

"""The cluster of KUBECONFIG: the tests' own (`make test-cluster`), or one that the user has."""

import contextlib
import os
import secrets
import time
from pathlib import Path

import pytest
from kubernetes import client, config

from espalier import __version__
from tests.cluster.places import MARK
from tests.unit.k8s.allowed_verbs import PIPELINE, SANDBOXES

IMAGE = os.environ.get("ESPALIER_TEST_IMAGE", f"localhost/espalier-cpu:{__version__}")
"""Any image with Python 3.11 on PATH, and espalier in it."""
_END_S = 60.0


@pytest.fixture(scope="session")
def kubeconfig():
    if "KUBECONFIG" not in os.environ:
        pytest.skip("KUBECONFIG is not set: `make test-cluster` starts a cluster and runs this")
    return Path(os.environ["KUBECONFIG"])


@pytest.fixture(scope="session")
def own_cluster(kubeconfig):
    """The folder of the cluster that was started for these tests: harm is for it alone."""
    if MARK not in os.environ:
        pytest.skip("only the cluster that `python -m tests.cluster up` started is harmed")
    return Path(os.environ[MARK])


@pytest.fixture(scope="session")
def administrator(kubeconfig):
    """A client with the rights of the kubeconfig's user."""
    settings = client.Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=settings)
    with client.ApiClient(settings) as opened:
        core = client.CoreV1Api(opened)
        present = {item.metadata.name for item in core.list_namespace().items}
        if not {PIPELINE, SANDBOXES} <= present:
            pytest.skip(
                "k8s/ is not installed there: kubectl apply --server-side -k k8s/overlays/..."
            )
        yield opened


@pytest.fixture(scope="session")
def core(administrator):
    return client.CoreV1Api(administrator)


@pytest.fixture(scope="session")
def as_account(administrator):
    """Account and namespace -> a client that is it, by a token of its own."""
    opened = {}

    def get(account, namespace=PIPELINE):
        if (account, namespace) not in opened:
            asked = client.AuthenticationV1TokenRequest(
                spec=client.V1TokenRequestSpec(audiences=[])
            )
            core = client.CoreV1Api(administrator)
            answer = core.create_namespaced_service_account_token(account, namespace, asked)
            opened[account, namespace] = client.ApiClient(
                _with_token(administrator.configuration, answer.status.token)
            )
        return opened[account, namespace]

    yield get
    for one in opened.values():
        one.close()


@pytest.fixture
def run_pod(core):
    """Runs a program in a pod of the pipeline; gives what it printed, and whether it succeeded."""
    with contextlib.ExitStack() as made:

        def run(*command, account="espalier-step", token=False):
            pod = _pod(command, account, automount=token)
            name = core.create_namespaced_pod(PIPELINE, pod).metadata.name
            gone = {"grace_period_seconds": 0}
            made.callback(core.delete_namespaced_pod, name, PIPELINE, **gone)
            phase = _ended(core, name)
            return core.read_namespaced_pod_log(name, PIPELINE), phase == "Succeeded"

        yield run


def _with_token(settings, token):
    mine = client.Configuration()
    mine.host, mine.ssl_ca_cert = settings.host, settings.ssl_ca_cert
    mine.verify_ssl = settings.verify_ssl
    mine.api_key = {"authorization": f"Bearer {token}"}
    return mine


def _pod(command, account, *, automount):
    container = {
        "name": "program",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "metadata": {"name": f"test-{secrets.token_hex(4)}"},
        "spec": {
            "serviceAccountName": account,
            "automountServiceAccountToken": automount,
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        },
    }


def _ended(core, name):
    end = time.monotonic() + _END_S
    while time.monotonic() < end:
        pod = core.read_namespaced_pod(name, PIPELINE)
        if pod.status.phase in ("Succeeded", "Failed"):
            return pod.status.phase
        time.sleep(0.2)
    raise AssertionError(f"{name} did not end in {_END_S} s: {pod.status}")

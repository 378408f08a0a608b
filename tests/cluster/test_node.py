"""The cluster itself: what every other test here counts on."""

import socket
import ssl
import urllib.error
import urllib.request

import pytest

from tests.cluster.network import NODE_ADDRESS
from tests.unit.k8s.allowed_verbs import PIPELINE

RESOLVE = "import socket, sys; print(socket.gethostbyname(sys.argv[1]))"
CALL = """
import ssl, sys, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
token = open(f"{folder}/token").read()
url = "https://kubernetes.default.svc/apis/authorization.k8s.io"
asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
trusted = ssl.create_default_context(cafile=f"{folder}/ca.crt")
print(urllib.request.urlopen(asked, context=trusted, timeout=20).status)
"""


def _condition(node, kind):
    (found,) = [entry for entry in node.status.conditions if entry.type == kind]
    return found.status


def test_every_node_is_ready(core):
    nodes = core.list_node().items
    assert nodes
    assert {node.metadata.name: _condition(node, "Ready") for node in nodes} == {
        node.metadata.name: "True" for node in nodes
    }


def test_a_pod_finds_a_service_by_its_name(core, run_pod):
    service = core.read_namespaced_service("espalier-mlflow", PIPELINE)
    name = f"espalier-mlflow.{PIPELINE}.svc"
    said, succeeded = run_pod("python3", "-c", RESOLVE, name)
    assert succeeded, said
    assert said.strip() == service.spec.cluster_ip


def test_an_unknown_name_is_not_found(run_pod):
    said, succeeded = run_pod("python3", "-c", RESOLVE, f"nobody.{PIPELINE}.svc")
    assert not succeeded
    assert "gaierror" in said


def test_a_pod_reaches_the_api_server_by_its_service(run_pod):
    said, succeeded = run_pod("python3", "-c", CALL, account="espalier-trainer", token=True)
    assert succeeded, said
    assert said.strip() == "200"


def test_the_pipelines_image_has_espalier_in_it(run_pod):
    said, succeeded = run_pod("python3", "-c", "import espalier; print(espalier.__version__)")
    assert succeeded, said


@pytest.mark.parametrize("path", ["pods", "healthz", "metrics", "logs/"])
def test_the_kubelet_refuses_anonymous_requests(own_cluster, path):
    trusted = ssl.create_default_context(cafile=str(own_cluster / "keys" / "ca.crt"))
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"https://{NODE_ADDRESS}:10250/{path}", context=trusted, timeout=10)
    assert refused.value.code == 401


def test_no_packet_leaves_the_cluster(own_cluster):
    """Nothing answers at a documentation address (TEST-NET-2), for nothing is there."""
    with pytest.raises(OSError, match=r"timed out|unreachable|No route"):
        socket.create_connection(("198.51.100.7", 80), timeout=2)

"""A real Ray cluster on this machine, whose nodes have a CPU each."""

import os
import secrets
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.waiting import wait_until

ray = pytest.importorskip("ray", reason="there is no ray: pip install 'espalier-agents[ray]'")

from ray._private import ray_constants  # noqa: E402 (after the skip)
from ray._private.authentication_test_utils import (  # noqa: E402 (after the skip)
    reset_auth_token_state,
)
from ray.cluster_utils import Cluster  # noqa: E402 (after the skip)

ROOT = Path(__file__).parents[2]
ABSENT = ROOT / "tests" / "fakes" / "absent"
"""Hides a package that users do not have: importing it takes each process with Ray a second."""
NODE = {
    "num_cpus": 1,
    "node_ip_address": "127.0.0.1",
    "object_store_memory": 80 * 2**20,
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,
}
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(
        part for part in (os.environ.get("PYTHONPATH"), str(ROOT), str(ABSENT)) if part
    ),
    "RAY_USAGE_STATS_ENABLED": "0",
    # loopback alone, as Ray has it on desktops: else it asks for this machine's address elsewhere
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # on a busy machine a Python process takes its time to start
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_gcs_server_port_wait_time_s": "300",
    # 15 by default: such a worker hardly gets its turn beside other processes
    "RAY_worker_niceness": "0",
    # as KubeRay sets them for a cluster with authOptions; everything below runs with the token
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_urlsafe(32),
}


def add_node(nodes):
    """A node more, which this process sees; a busy machine may need more time than Ray waits."""
    node = nodes.add_node(**NODE, wait=False)
    wait_until(lambda: node.node_id in alive(), within_s=300)
    return node


def alive():
    """Ids of the nodes; one that was killed counts until Ray misses its heartbeats."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def nodes_beside_the_head():
    """Ids of the nodes that are alive, without the one that this process is connected to."""
    return [
        node["NodeID"]
        for node in ray.nodes()
        if node["Alive"] and "node:__internal_head__" not in node["Resources"]
    ]


@contextmanager
def ray_cluster(count):
    """Nodes, with this process connected to the first of them."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)  # read when Ray was imported
        reset_auth_token_state()  # as is whether there is a token
        nodes = Cluster()
        try:
            nodes.add_node(**NODE, wait=False)
            ray.init(address=nodes.address, log_to_driver=False)
            for _ in range(1, count):
                add_node(nodes)
            yield nodes
        finally:
            ray.shutdown()
            nodes.shutdown()
    reset_auth_token_state()

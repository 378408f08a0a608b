"""Training on the nodes of a real Ray cluster: two on this machine, with a place each."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray
import torch
from ray._private import ray_constants
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, placement_group_table

from espalier.training.parallel import Processes
from tests.integration.ray_driver import CASES
from tests.integration.test_lost_processes import errors_of, pid_of
from tests.integration.two_processes import two_steps

ROOT = Path(__file__).parents[2]
DEADLINE_S = 300
NODE = {
    "num_cpus": 1,
    "node_ip_address": "127.0.0.1",
    "object_store_memory": 80 * 2**20,
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,
}
DRIVERS_PLACE = {"CPU": 1, "node:__internal_head__": 0.001}
"""A driver connects to the head of its machine; the one of a RayJob has a place there already."""
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "RAY_USAGE_STATS_ENABLED": "0",
    # loopback alone, as Ray has it on desktops: else it asks for this machine's address elsewhere
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # on a busy machine a Python process takes its time to start
    "RAY_worker_register_timeout_seconds": "300",
}


def two_nodes(attempts=3):
    """Ray gives a node's own processes fifteen seconds to start: on a busy machine, not enough."""
    nodes = Cluster()
    try:
        nodes.add_node(**NODE)
        nodes.add_node(**NODE)
    except Exception:  # Ray has no narrower one for it
        nodes.shutdown()
        if attempts == 1:
            raise
        return two_nodes(attempts - 1)
    return nodes


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)  # read when Ray was imported
        nodes = two_nodes()
        try:
            ray.init(address=nodes.address, log_to_driver=False)
            assert placement_group([DRIVERS_PLACE]).wait(DEADLINE_S)
            yield nodes
        finally:
            ray.shutdown()
            nodes.shutdown()


def driver(cluster, call):
    code = f"from tests.integration import ray_driver; ray_driver.{call}"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "RAY_ADDRESS": cluster.address},
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )


def assert_given_back():
    """The place of the companion is free again, and the group of places is gone."""
    deadline = time.monotonic() + DEADLINE_S
    while ray.available_resources().get("CPU", 0) < 1:
        assert time.monotonic() < deadline, "a place is still held"
        time.sleep(0.1)
    held = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
    assert [group["bundles"] for group in held] == [{0: DRIVERS_PLACE}]


def assert_ended(pid):
    deadline = time.monotonic() + DEADLINE_S
    while Path("/proc", str(pid)).exists():
        assert time.monotonic() < deadline, f"process {pid} is left"
        time.sleep(0.1)


def test_two_nodes_give_the_loss_and_the_weights_of_one_process(cluster, tmp_path):
    with driver(cluster, f"together({str(tmp_path)!r})") as process:
        _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said
    found = torch.load(tmp_path / "found.pt", weights_only=False)
    assert len(set(found["nodes"])) == 2
    assert set(found["nodes"]) == {node["NodeID"] for node in ray.nodes()}
    assert found["threads"][1] == found["threads"][0]
    expected_figures, expected_weights, _ = two_steps("plain", Processes())
    for case in CASES:
        figures, weights, _ = found["steps"][case]
        for step, expected in zip(figures, expected_figures, strict=True):
            assert step == pytest.approx(expected, rel=1e-9, abs=1e-12)
        for name, weight in expected_weights.items():
            torch.testing.assert_close(weights[name], weight, rtol=1e-9, atol=1e-12, msg=name)
    assert_given_back()


def test_more_processes_than_places_are_refused(cluster):
    with driver(cluster, "too_many()") as process:
        (error,) = errors_of(process)
    assert "training.processes=16 asks for 16 CPUs, one each" in error
    assert "the Ray cluster has 2 on 2 nodes" in error


def test_a_killed_companion_ends_training_with_one_error_and_gives_its_place_back(
    cluster, tmp_path
):
    with driver(cluster, f"lost({str(tmp_path)!r})") as process:
        companion = pid_of(tmp_path, 1)
        os.kill(companion, signal.SIGKILL)
        (error,) = errors_of(process)
    assert error.startswith("error: rank 1 of 2 processes that train together, on node 127.0.0.1")
    assert "its process died" in error
    assert_ended(companion)
    assert_given_back()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_driver_that_is_killed_leaves_no_companion(cluster, tmp_path, number):
    with driver(cluster, f"lost({str(tmp_path)!r})") as process:
        pids = [pid_of(tmp_path, rank) for rank in (0, 1)]
        assert pids[0] == process.pid
        process.send_signal(number)
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode != 0
    assert_ended(pids[1])
    assert_given_back()

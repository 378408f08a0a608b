"""What runs on the nodes of a real Ray cluster: two on this machine, with a CPU each."""

import fcntl
import os
import signal
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import ray
import torch
from ray.util.placement_group import (
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from espalier.config import KnowledgeConfig, Profile
from espalier.records import NullTracker, open_artifact
from espalier.records.artifact import work_dir
from espalier.stages import ingest
from espalier.training.parallel import Processes
from espalier_search.synthesis.bulk_drawing import BulkOrder, draw_questions
from tests.integration.commands import espalier, started
from tests.integration.ray_cluster import ROOT, ray_cluster
from tests.integration.ray_drawing import ORDER
from tests.integration.ray_driver import CASES
from tests.integration.test_lost_processes import errors_of, pid_of
from tests.integration.two_processes import two_steps
from tests.integration.waiting import wait_until

DEADLINE_S = 300
DRIVERS_PLACE = {"CPU": 1, "node:__internal_head__": 0.001}
"""A driver connects to the head of its machine; the one of a RayJob has a place there already."""
KILLED_AT_ROWS = 100


@pytest.fixture(scope="module")
def nodes():
    with ray_cluster(2) as nodes:
        yield nodes


CONNECTS = """
import sys
from ray._raylet import GcsClient
print("nodes:", len(GcsClient(address=sys.argv[1]).get_all_node_info()))
"""


@pytest.mark.parametrize(
    ("credentials", "is_let_in"),
    [
        ({}, True),
        ({"RAY_AUTH_TOKEN": "another-token-that-nobody-made-here"}, False),
        ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": ""}, False),
    ],
)
def test_only_who_has_the_token_joins_the_cluster(nodes, credentials, is_let_in):
    done = espalier(nodes.address, script=CONNECTS, **credentials)
    assert ("nodes: 2" in done.stdout) is is_let_in, done.stderr[-500:]
    assert ("AuthenticationError" in done.stderr) is not is_let_in, done.stderr[-500:]


@pytest.fixture
def cluster(nodes):
    """With the place of a driver taken."""
    places = placement_group([DRIVERS_PLACE])
    assert places.wait(DEADLINE_S)
    yield nodes
    remove_placement_group(places)


@pytest.fixture(scope="module")
def knowledge(tmp_path_factory):
    directory = tmp_path_factory.mktemp("geonames") / "knowledge"
    profile = Profile(knowledge=KnowledgeConfig(max_cities=3000))
    ingest.run(profile, {}, directory, NullTracker())
    return directory


@pytest.fixture(scope="module")
def drawn_here(knowledge, tmp_path_factory):
    """The content of the order, drawn in one process of this machine."""
    out = tmp_path_factory.mktemp("drawn here") / "questions"
    order = BulkOrder(knowledge=knowledge, **ORDER)
    return draw_questions(Profile(), order, out, NullTracker()).content


def driver(cluster, call):
    module = call.partition(".")[0]
    code = f"from tests.integration import {module}; {call}"
    return started(script=code, cwd=ROOT, RAY_ADDRESS=cluster.address)


def assert_free(cpus):
    wait_until(lambda: ray.available_resources().get("CPU", 0) >= cpus, within_s=DEADLINE_S)


def assert_given_back():
    """The place of the worker is free again, and the group of places is gone."""
    assert_free(1)
    held = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
    assert [group["bundles"] for group in held] == [{0: DRIVERS_PLACE}]


def assert_ended(pid):
    wait_until(lambda: not Path("/proc", str(pid)).exists(), within_s=DEADLINE_S)


def test_two_nodes_give_loss_and_weights_of_one_process(cluster, tmp_path):
    with driver(cluster, f"ray_driver.together({str(tmp_path)!r})") as process:
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
    with driver(cluster, "ray_driver.too_many()") as process:
        (error,) = errors_of(process)
    assert "training.processes=16" in error
    assert "2 nodes" in error


def test_a_killed_worker_ends_training_and_frees_its_cpu(cluster, tmp_path):
    with driver(cluster, f"ray_driver.lost({str(tmp_path)!r})") as process:
        worker = pid_of(tmp_path, 1)
        os.kill(worker, signal.SIGKILL)
        (error,) = errors_of(process)
    assert error.startswith("error: rank 1 of 2 processes that train together, on node 127.0.0.1")
    assert "its process died" in error
    assert_ended(worker)
    assert_given_back()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_driver_that_is_killed_leaves_no_worker(cluster, tmp_path, number):
    with driver(cluster, f"ray_driver.lost({str(tmp_path)!r})") as process:
        pids = [pid_of(tmp_path, rank) for rank in (0, 1)]
        assert pids[0] == process.pid
        process.send_signal(number)
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode != 0
    assert_ended(pids[1])
    assert_given_back()


def part_writers(out):
    """Processes that hold the lock of a part, by the folder of the part."""
    writers = {}
    for lock in work_dir(out).glob("*/*/lock"):
        for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
            with suppress(OSError):  # it has ended since
                if descriptor.resolve() == lock and (lock.parent / "journal").exists():
                    writers[lock.parent] = int(descriptor.parts[2])
    return writers


def rows_of(part):
    rows = part / "rows.jsonl"
    return rows.read_bytes().count(b"\n") if rows.exists() else 0


def two_that_write(out):
    """The writers of two parts, once they have written some rows."""
    found = {}

    def both_write():
        found.clear()
        found.update(part_writers(out))
        return len(found) == 2 and min(map(rows_of, found)) >= KILLED_AT_ROWS

    wait_until(both_write, within_s=DEADLINE_S)
    return set(found.values())


def test_two_nodes_draw_the_questions_of_one_process(nodes, knowledge, drawn_here, tmp_path):
    """One worker is killed: another goes on after its last row."""
    out = tmp_path / "questions"
    with driver(nodes, f"ray_drawing.draw({str(knowledge)!r}, {str(out)!r})") as process:
        victim, _ = two_that_write(out)
        os.kill(victim, signal.SIGKILL)
        _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said
    assert open_artifact(out).content == drawn_here
    assert_free(2)


def test_a_killed_command_leaves_no_worker_and_is_continued(nodes, knowledge, drawn_here, tmp_path):
    out = tmp_path / "questions"
    call = f"ray_drawing.draw({str(knowledge)!r}, {str(out)!r})"
    with driver(nodes, call) as process:
        writers = two_that_write(out)
        process.kill()
        process.communicate()
    for pid in writers:
        assert_ended(pid)
    parts = list(work_dir(out).glob("*/*"))
    assert sum(map(rows_of, parts)) >= 2 * KILLED_AT_ROWS
    with ExitStack() as held:  # by another command, as it seems
        for part in parts:
            lock = held.enter_context((part / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        with driver(nodes, call) as process:
            (error,) = errors_of(process)
    assert "another process" in error
    with driver(nodes, call) as process:
        _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said
    assert open_artifact(out).content == drawn_here

"""The nodes of a TrainJob: who they are, and which of them is lost."""

import json
import os
import pickle
import shutil
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from espalier.records import LostWorkerError, TrainingError
from espalier.training import nodes as nodes_of_a_job
from espalier.training.nodes import Nodes, node_workers
from tests.benchmarks.minio_server import free_port
from tests.integration.train_nodes import second_node, variables
from tests.integration.waiting import wait_until

CPU = torch.device("cpu")
ENVIRONMENT = {
    "PET_NNODES": "3",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29400",
    "ESPALIER_NODES_KEY": "/s3/key",
}


def test_nodes_are_those_of_trainers_variables():
    nodes = Nodes.of(ENVIRONMENT)
    assert nodes == Nodes(3, 1, "job-node-0-0.job", 29400, Path("/s3/key"))
    assert [list(nodes.ranks(index, 6)) for index in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert Nodes.of({}) == Nodes.of({**ENVIRONMENT, "PET_NNODES": "1"}) == Nodes()


@pytest.mark.parametrize(("name", "value"), [("PET_NNODES", "1:3"), ("PET_MASTER_ADDR", None)])
def test_variables_that_name_no_nodes_are_refused(name, value):
    environment = {k: v for k, v in {**ENVIRONMENT, name: value}.items() if v is not None}
    with pytest.raises(TrainingError, match="several nodes"):
        Nodes.of(environment)


@pytest.fixture
def nodes():
    yield (made := Nodes.of(variables(0, free_port())))
    shutil.rmtree(made.key.parent, ignore_errors=True)


@contextmanager
def with_another(nodes, count=2):
    """The first node's workers, and the store as the second node, which is there, sees it."""
    seen = []

    def come():
        seen.append(nodes_of_a_job._store(nodes.address, nodes.port))
        seen[0].set("node/1/beat", "1")

    thread = threading.Thread(target=come)
    thread.start()
    with node_workers(count, CPU, nodes=nodes) as workers:
        thread.join()
        yield workers, seen[0]


def test_a_node_is_lost_while_it_is_silent(nodes, monkeypatch):
    with with_another(nodes) as (workers, store):
        assert workers.failure() is None
        monkeypatch.setattr(nodes_of_a_job, "_SILENT_FOR_S", 0.05)
        time.sleep(0.1)
        lost = workers.failure()
        monkeypatch.undo()
        store.set("node/1/beat", "2")
        wait_until(lambda: workers.failure() is None)
    assert isinstance(lost, LostWorkerError)
    assert "node 1 of the 2" in str(lost)


@pytest.mark.parametrize(("is_lost", "kind"), [(True, LostWorkerError), (False, TrainingError)])
def test_what_a_node_says_of_its_ranks_is_its_failure(nodes, monkeypatch, is_lost, kind):
    monkeypatch.setattr(nodes_of_a_job, "_SILENT_FOR_S", 0.0)  # a mere failure is not held back
    with with_another(nodes) as (workers, store):
        failure = told(workers, store, is_lost, "rank 1 has ended")
    assert type(failure) is kind
    assert str(failure) == "rank 1 has ended"


def told(workers, store, is_lost, message):
    """The failure, once the second node has said this; the store passes it on a moment later."""
    found = []
    store.set("node/1/failure", json.dumps([is_lost, message]))
    wait_until(lambda: found.append(workers.failure()) or message in str(found[-1]))
    return found[-1]


def fail(rank, gpu):
    raise ValueError(f"rank {rank} on {gpu}")


def test_failures_that_a_lost_node_caused_wait_for_it(nodes):
    with with_another(nodes, count=4) as (workers, store):
        workers.start(fail)
        workers._local.wait()
        assert workers.failure() is None
        lost = told(workers, store, is_lost=True, message="node 1 is lost")
    assert isinstance(lost, LostWorkerError)


def test_a_node_that_came_back_takes_no_more_ranks(nodes):
    """Its ranks are gone, and those of the others wait for them."""
    with with_another(nodes) as (workers, store):
        workers.start(fail)
        store.set("node/1/taken", "")
        with second_node(os.environ, nodes.port):
            wait_until(workers.failure)
            lost = workers.failure()
    assert isinstance(lost, LostWorkerError)
    assert "started again" in str(lost)


def test_a_node_that_does_not_come_is_named(nodes, monkeypatch):
    monkeypatch.setattr(nodes_of_a_job, "_NODES_WITHIN_S", 0.05)
    with (
        pytest.raises(LostWorkerError, match=rf"\[1\] did not reach {nodes.address}:{nodes.port}"),
        node_workers(2, CPU, nodes=nodes),
    ):
        pass


@pytest.mark.parametrize("address", ["no-such-host.invalid", "192.0.2.1"])
def test_a_first_node_at_another_address_is_named(nodes, monkeypatch, address):
    """A cluster's DNS may still name the pod that it replaces."""
    monkeypatch.setattr(nodes_of_a_job, "_NAME_WITHIN_S", 0.0)
    elsewhere = replace(nodes, address=address)
    with pytest.raises(LostWorkerError, match=address), node_workers(2, CPU, nodes=elsewhere):
        pass


def test_only_a_signed_order_is_run(nodes, caplog, tmp_path):
    """Whoever reaches the store could write one."""
    ran = tmp_path / "ran"
    with with_another(nodes) as (workers, store):
        workers.start(print)
        signed = bytes.fromhex(store.get("order").decode())
        forged = pickle.dumps((2, partial(touch, str(ran))))
        store.set("order", (signed[:32] + forged).hex())
        attempt = nodes_of_a_job._Attempt(replace(nodes, index=1), store)
        refused = attempt._order()
        store.set("order", signed.hex())
        wait_until(lambda: attempt._order() is not None)
        assert attempt._order() is None, "once in an attempt"
        attempt.end()
    assert refused is None
    assert "not signed" in caplog.text
    assert not ran.exists()


def touch(path, rank, gpu):
    Path(path).touch()


def test_a_first_node_that_does_not_answer_is_given_up(nodes, monkeypatch):
    codes = []
    monkeypatch.setattr(nodes_of_a_job, "_FIRST_SILENT_FOR_S", 0.01)
    monkeypatch.setattr(nodes_of_a_job, "_POLL_INTERVAL_S", 0.02)
    monkeypatch.setattr(nodes_of_a_job.os, "_exit", codes.append)
    with with_another(nodes) as (_, store):
        attempt = nodes_of_a_job._Attempt(replace(nodes, index=1), store)
        with attempt.watched():
            wait_until(lambda: codes)
    assert set(codes) == {75}

"""Training on two nodes of a TrainJob, of which one is lost."""

import os
import signal
from functools import partial

import pytest
import torch

from espalier.training.launch import training_processes
from espalier.training.parallel import Processes
from tests.benchmarks.minio_server import free_port
from tests.integration.commands import started
from tests.integration.test_lost_processes import DEADLINE_S, pid_of
from tests.integration.train_nodes import first_node, second_node, variables
from tests.integration.two_processes import two_steps
from tests.integration.waiting import wait_until

SCRIPT = """
import os, sys
from pathlib import Path
from espalier.steps.refusing import FailureMessage
from espalier.training.launch import worker_launcher
from tests.integration.lost_processes import train
with FailureMessage("train"):
    train("talking", Path(sys.argv[1]), worker_launcher(os.environ))
"""
AGAIN = 75


@pytest.fixture(scope="module")
def port():
    return free_port()


@pytest.fixture(scope="module")
def node(port):
    with second_node(os.environ, port) as process:
        yield process


def sharded_steps(processes):
    return two_steps("plain", processes, sharded=processes.count > 1)


def test_two_nodes_give_the_weights_of_one_process(node, port):
    with training_processes(
        2,
        device=torch.device("cpu"),
        worker_main=sharded_steps,
        launcher=first_node(port),
        timeout_s=DEADLINE_S,
    ) as processes:
        figures, weights, _ = sharded_steps(processes)
    expected_figures, expected, _ = sharded_steps(Processes())
    assert figures[1]["grad_norm"] == pytest.approx(expected_figures[1]["grad_norm"], rel=1e-9)
    for key, weight in expected.items():
        torch.testing.assert_close(weights[key], weight, rtol=1e-9, atol=1e-12, msg=key)


def test_a_node_serves_attempt_after_attempt_until_it_is_ended(node, port, tmp_path):
    """The first node is lost, then a rank of the second one, then that itself."""

    def kill_the_first_node(process, _rank):
        process.kill()

    def kill_a_rank(_process, rank):
        os.kill(rank, signal.SIGKILL)

    def end_the_node(_process, _rank):
        node.terminate()

    for lose, said in (
        (kill_the_first_node, None),
        (kill_a_rank, "rank 1 of 2 processes that train together has ended: SIGKILL"),
        (end_the_node, "node 1 of the 2 that train together is lost: its pod got SIGTERM"),
    ):
        folder = tmp_path / lose.__name__
        folder.mkdir()
        with started(folder, script=SCRIPT, **variables(0, port)) as process:
            ranks = [pid_of(folder, rank) for rank in (0, 1)]
            lose(process, ranks[1])
            _, log = process.communicate(timeout=DEADLINE_S)
        if said is not None:
            assert process.returncode == AGAIN, log
            assert f"error: train: {said}" in log
        for pid in ranks:
            wait_until(partial(is_gone, pid))


def is_gone(pid):
    return not os.path.exists(f"/proc/{pid}")

"""What the driver of a RayJob, and its workers on other nodes, do in the tests."""

import os
import sys
from functools import partial
from pathlib import Path

import ray
import torch

from espalier.records import TrainingError
from espalier.training.launch import training_processes
from espalier.training.ray_workers import ray_workers

CPU = torch.device("cpu")
CASES = [("plain", False), ("plain", True)]
GIVEN = {"MKL_CBWR": "AUTO,STRICT", "ESPALIER_TEST": "handed on"}
ON_NODES = partial(ray_workers, environment=GIVEN)


def steps_and_nodes(processes):
    """Two optimizer steps of each case, and where the ranks are."""
    from tests.integration.two_processes import two_steps

    return {
        "steps": {case: two_steps(case[0], processes, sharded=case[1]) for case in CASES},
        "nodes": processes.gather(ray.get_runtime_context().get_node_id()),
        "threads": processes.gather(torch.get_num_threads()),
    }


def run_worker(processes):
    steps_and_nodes(processes)
    assert os.environ["ESPALIER_TEST"] == "handed on"


together_on_nodes = partial(
    training_processes, device=CPU, worker_main=run_worker, launcher=ON_NODES, timeout_s=600
)


def together(folder):
    with together_on_nodes(2) as processes:
        found = steps_and_nodes(processes)
    torch.save(found, Path(folder) / "found.pt")


def too_many():
    try:
        with together_on_nodes(16):
            raise AssertionError("sixteen processes on two nodes with a place each")
    except TrainingError as error:
        sys.exit(f"error: {error}")


def lost(folder):
    from tests.integration.lost_processes import main

    main("talking", folder, ON_NODES)

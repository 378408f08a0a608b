"""Nodes of a TrainJob on this machine, as Kubeflow Trainer's variables name them."""

import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from espalier.training.nodes import Nodes, node_workers


def variables(index, port):
    """What Trainer, and the step's runner, set in the pod of one of two nodes."""
    return {
        "ESPALIER_NODES_KEY": str(Path(tempfile.gettempdir()) / f"nodes-{port}" / "nodes.key"),
        "PET_NNODES": "2",
        "PET_NODE_RANK": str(index),
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(port),
    }


@contextmanager
def second_node(environment, port):
    """A process that runs the second node's part."""
    with subprocess.Popen(
        [sys.executable, "-m", "espalier.training.nodes"],
        env={**environment, **variables(1, port)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            process.communicate()
            shutil.rmtree(Path(variables(1, port)["ESPALIER_NODES_KEY"]).parent, ignore_errors=True)


def first_node(port):
    """The launcher of the first node."""
    return partial(node_workers, nodes=Nodes.of(variables(0, port)))

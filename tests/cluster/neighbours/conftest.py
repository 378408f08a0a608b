"""What `python -m tests.cluster neighbours` started, and inputs of the stages that run on it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cluster import objects
from tests.cluster.neighbours import runs
from tests.cluster.neighbours.backend import INSTALLED
from tests.cluster.places import MARK, REPOSITORY, places
from tests.unit.k8s.allowed_verbs import PIPELINE

QUEUES = REPOSITORY / "k8s" / "overlays" / "kueue" / "queues.yaml"
CLAIM = "espalier-workspace"
INPUTS = "s3://espalier/runs/inputs"
URGENT = "urgent"
"""A WorkloadPriorityClass above that of the pipeline."""
_QUOTA = {"cpu": "1", "memory": "16Gi"}
"""Of CPU nodes: one stage at a time. That of GPU nodes stays, and the cluster has none."""


@pytest.fixture(scope="session")
def need():
    """Skips a test whose neighbour was not installed; gives the places of the cluster."""

    def check(*names):
        installed = os.environ.get(INSTALLED, "").split(",")
        absent = [name for name in names if name not in installed]
        if absent or MARK not in os.environ:
            pytest.skip(f"{', '.join(absent or names)} is not installed: `make test-neighbours`")
        return places()

    return check


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    """URI of the artifacts that a training reads, of a small run made here.

    ESPALIER_TEST_NEIGHBOURS_RUN names the folder of one that was made before.
    """
    folder = os.environ.get("ESPALIER_TEST_NEIGHBOURS_RUN")
    if folder is None:
        folder = tmp_path_factory.mktemp("neighbours") / "run"
        settings = (*runs.SMALL, "training.steps=1", "training.evaluate_every=1")
        command = [Path(sys.executable).with_name("espalier"), "run", "--profile=smoke"]
        command += [f"--out={folder}", *(f"--set={one}" for one in settings)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    runs.publish_inputs(folder, INPUTS)
    return INPUTS


@pytest.fixture(scope="session")
def shared_claim(need):
    """A volume that several nodes write; there is one machine, so a folder of it does."""
    here = need()
    volume = objects.volume(here, CLAIM)
    volume["spec"]["accessModes"] = ["ReadWriteMany"]
    described = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM, "namespace": PIPELINE},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "20Gi"}},
            "volumeName": CLAIM,
            "storageClassName": "",
        },
    }
    runs.apply(here, volume, described)
    return CLAIM


@pytest.fixture(scope="session")
def queues(need):
    """The objects of k8s/overlays/kueue, with a quota that this node has."""
    here = need("kueue")
    made = list(yaml.safe_load_all(QUEUES.read_text()))
    (cluster_queue,) = [one for one in made if one["kind"] == "ClusterQueue"]
    (group,) = cluster_queue["spec"]["resourceGroups"]
    for resource in group["flavors"][0]["resources"]:
        resource["nominalQuota"] = _QUOTA.get(resource["name"], resource["nominalQuota"])
    urgent = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "WorkloadPriorityClass",
        "metadata": {"name": URGENT},
        "value": 10**8,
    }
    runs.apply(here, *made, urgent)
    runs.until(
        "the queue is active",
        lambda: runs.condition(
            runs.found(here, "localqueue", "espalier", PIPELINE), "Active"
        ).get("status") == "True",
        within_s=60,
    )  # fmt: skip
    return here

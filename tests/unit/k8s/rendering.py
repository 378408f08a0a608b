"""What `kubectl kustomize` makes of k8s/, and the pods in it."""

import functools
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

K8S = Path(__file__).parents[3] / "k8s"
CLOUDS = ("overlays/gke", "overlays/eks", "overlays/aks")
LOCAL_ROLLOUT = "overlays/local-rollout"
LOCAL = ("overlays/local", "overlays/kind", LOCAL_ROLLOUT)
GPU = ("overlays/gpu", "overlays/kueue", *CLOUDS)
FOLDERS = ("base", "overlays/kubeflow", "overlays/trainer", *LOCAL, *GPU)

needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl, which renders k8s/, is not installed"
)
every_overlay = pytest.mark.parametrize("folder", FOLDERS)


class PodTemplate(NamedTuple):
    """A pod that an object would make."""

    owner: str
    namespace: str
    labels: dict
    spec: dict


@functools.cache
def rendered(folder):
    """The objects of k8s/<folder>; nobody changes them."""
    kustomize = ["kubectl", "kustomize", str(K8S / folder)]
    text = subprocess.run(kustomize, check=True, capture_output=True, text=True).stdout
    return tuple(yaml.load_all(text, Loader=yaml.CSafeLoader))


def of_kind(objects, *kinds):
    return [item for item in objects if item["kind"] in kinds]


def named(objects, kind, name):
    (found,) = [item for item in of_kind(objects, kind) if item["metadata"]["name"] == name]
    return found


def pod_templates(objects):
    """Every pod of `objects`, whichever kind makes it."""
    return [pod for item in objects for pod in _templates_of(item)]


def _templates_of(item):
    match item["kind"]:
        case "Pod":
            found = [item]
        case "Deployment" | "Job":
            found = [item["spec"]["template"]]
        case "CronJob":
            found = [item["spec"]["jobTemplate"]["spec"]["template"]]
        case "SandboxTemplate":
            found = [item["spec"]["podTemplate"]]
        case "ClusterTrainingRuntime":
            jobs = item["spec"]["template"]["spec"]["replicatedJobs"]
            found = [job["template"]["spec"]["template"] for job in jobs]
        case "RayJob":
            cluster = item["spec"]["rayClusterSpec"]
            groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
            found = [item["spec"]["submitterPodTemplate"], *(group["template"] for group in groups)]
        case _:
            found = []
    owner, namespace = (
        f"{item['kind']}/{item['metadata']['name']}",
        item["metadata"].get("namespace"),
    )
    if item["kind"] == "ClusterTrainingRuntime":  # its pods are where its TrainJobs are
        namespace = "espalier-pipeline"
    return [
        PodTemplate(owner, namespace, pod["metadata"].get("labels", {}), pod["spec"])
        for pod in found
    ]


def containers(spec):
    return [*spec.get("initContainers", []), *spec["containers"]]

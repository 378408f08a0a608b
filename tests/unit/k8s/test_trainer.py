"""k8s/trainer: a TrainJob on one of its runtimes makes the pod that a Job of the stage makes."""

import copy

import pytest

from espalier.cluster.objects.train_job import RUNTIMES, train_job
from tests.unit.cluster.objects.samples import (
    CLUSTER,
    LAPTOP_SIZED,
    LAPTOP_TRAINER,
    TRACKING,
    TRAINER,
    job,
    order,
)
from tests.unit.k8s.kinds import faults
from tests.unit.k8s.pod_security import violations
from tests.unit.k8s.rendering import named, needs_kubectl, of_kind, rendered

pytestmark = needs_kubectl
FOLDER = "overlays/trainer"
SAMPLES = {"laptop": (LAPTOP_TRAINER, LAPTOP_SIZED), "cluster": (TRAINER, CLUSTER)}
MERGED_BY = {
    "volumes": "name", "volumeMounts": "mountPath", "env": "name", "containers": "name",
}  # fmt: skip


def merged(base, patch):
    """A strategic merge of Kubernetes, as far as pods of ours need it."""
    found = copy.deepcopy(base)
    for key, value in patch.items():
        if key in MERGED_BY:
            by = MERGED_BY[key]
            items = {item[by]: item for item in found.get(key, [])}
            for item in value:
                items[item[by]] = merged(items.get(item[by], {}), item)
            found[key] = list(items.values())
        elif isinstance(value, dict):
            found[key] = merged(found.get(key, {}), value)
        else:
            found[key] = value
    return found


def runtime_job(stage):
    (replicated,) = named(rendered(FOLDER), "ClusterTrainingRuntime", RUNTIMES[stage])["spec"][
        "template"
    ]["spec"]["replicatedJobs"]
    return replicated["template"]


def pod_of(stage, settings):
    """The pod template that Trainer 2.3 makes: newRuntimeInfo, and its plugins torch and jobset."""
    spec = train_job(order(settings, stage=stage, environment=TRACKING))["spec"]
    (patch,) = spec["runtimePatches"]
    (replicated,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    base = runtime_job(stage)["spec"]["template"]
    pod = merged(base, replicated["template"]["spec"]["template"])
    (container,) = pod["spec"]["containers"]
    trainer = spec["trainer"]
    container["image"], container["command"] = trainer["image"], trainer["command"]
    container["resources"] = merged(container["resources"], trainer["resourcesPerNode"])
    names = {entry["name"] for entry in trainer["env"]}
    kept = [entry for entry in container["env"] if entry["name"] not in names]
    container["env"] = kept + trainer["env"]
    return pod


every_case = pytest.mark.parametrize(
    ("stage", "sample"), [(stage, sample) for stage in RUNTIMES for sample in SAMPLES]
)


def mounts(pod):
    """Mount path -> source."""
    volumes = {volume["name"]: {**volume, "name": ""} for volume in pod["volumes"]}
    (container,) = pod["containers"]
    return {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}


@every_case
def test_a_train_jobs_pod_is_that_of_a_job(stage, sample):
    launched, plain = SAMPLES[sample]
    pod, alike = pod_of(stage, launched)["spec"], job(stage, plain)["spec"]["template"]["spec"]
    (container,), (wanted,) = pod["containers"], alike["containers"]
    for key in ("image", "imagePullPolicy", "resources", "securityContext", "command"):
        assert container[key] == wanted[key]
    whole = {"containers", "volumes"}
    assert {k: v for k, v in pod.items() if k not in whole} == {
        k: v for k, v in alike.items() if k not in whole
    }
    found, wanted_mounts = mounts(pod), mounts(alike)
    if "/s3" not in wanted_mounts:  # with a claim, the runtime's scratch is not used
        assert "emptyDir" in found.pop("/s3")
    assert found == wanted_mounts
    assert all(len(source) == 2 for source in mounts(pod).values())
    found = {entry["name"]: entry for entry in container["env"]}
    assert len(found) == len(container["env"])
    assert found.items() >= {entry["name"]: entry for entry in wanted["env"]}.items()
    assert found["ESPALIER_TRAINER"]["value"] == "trainjob"
    assert violations(pod) == []


@every_case
def test_a_train_jobs_pod_has_the_labels_of_a_jobs(stage, sample):
    launched, plain = SAMPLES[sample]
    labels = pod_of(stage, launched)["metadata"]["labels"]
    wanted = job(stage, plain)["spec"]["template"]["metadata"]["labels"]
    own = {"app.kubernetes.io/name", "app.kubernetes.io/component"}
    assert {k: v for k, v in wanted.items() if k not in own}.items() <= labels.items()
    more = {k for k in labels if "may-reach" in k} - wanted.keys()
    nodes = {"espalier.dev/may-reach-train-nodes"} if stage == "train" else set()
    assert more == {"espalier.dev/may-reach-trainer"} | nodes


def test_the_nodes_of_training_share_its_processes():
    several = TRAINER.model_copy(update={"nodes": 2})
    trainers = {
        stage: train_job(order(several, stage=stage, processes=processes))["spec"]["trainer"]
        for stage, processes in (("train", 8), ("warm_start", 1))
    }
    found = {name: (one["numNodes"], one["numProcPerNode"]) for name, one in trainers.items()}
    assert found == {"train": (2, 4), "warm_start": (1, 1)}


@pytest.mark.parametrize("stage", RUNTIMES)
def test_a_runtimes_job_is_tried_again_as_a_job(stage):
    found = runtime_job(stage)["spec"]
    assert faults({"apiVersion": "batch/v1", "kind": "Job", **runtime_job(stage)}) == []
    wanted = copy.deepcopy(job(stage, LAPTOP_SIZED)["spec"])
    for rule in wanted["podFailurePolicy"]["rules"]:
        if "onExitCodes" in rule:
            rule["onExitCodes"]["containerName"] = "node"
    for key in ("backoffLimit", "podReplacementPolicy", "podFailurePolicy"):
        assert found[key] == wanted[key]
    (container,) = found["template"]["spec"]["containers"]
    assert container["command"] == ["espalier", "step", stage]


def test_every_runtime_is_of_a_stage():
    installed = of_kind(rendered(FOLDER), "ClusterTrainingRuntime")
    assert {item["metadata"]["name"] for item in installed} == set(RUNTIMES.values())
    assert all(item["spec"]["mlPolicy"]["numNodes"] == 1 for item in installed)

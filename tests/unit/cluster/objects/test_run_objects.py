import json
import shlex

import pytest

from espalier.chain import STAGES
from espalier.cluster.objects.job import stage_job
from espalier.cluster.objects.names import run_object_name
from espalier.cluster.objects.ray_job import ray_job
from espalier.cluster.objects.train_job import RUNTIMES, train_job
from espalier.config import GpuConfig, KubernetesConfig
from espalier.records import ManifestError
from tests.unit.cluster.objects.samples import (
    CLUSTER,
    LAPTOP_SIZED,
    LAPTOP_TRAINER,
    NODES,
    TRAINER,
    every_manifest,
    job,
    order,
)

POLICY_STAGES = {stage.name for stage in STAGES.values() if stage.uses_policy}
EPISODE_STAGES = {stage.name for stage in STAGES.values() if stage.plays_episodes}
LONGEST_STAGE = max(STAGES, key=len)


def _pod(manifest):
    return manifest["spec"]["template"]["spec"]


def _reach(manifest):
    prefix = "espalier.dev/may-reach-"
    labels = manifest["spec"]["template"]["metadata"]["labels"]
    return {key.removeprefix(prefix) for key in labels if key.startswith(prefix)}


def test_stages_named_here_are_stages():
    assert STAGES.keys() >= POLICY_STAGES | EPISODE_STAGES


@pytest.mark.parametrize("stage", STAGES)
def test_only_stages_with_sandboxes_hold_an_api_token(stage):
    manifest = job(stage, LAPTOP_SIZED)
    acts = stage in EPISODE_STAGES
    assert _pod(manifest)["automountServiceAccountToken"] is acts
    assert (_pod(manifest)["serviceAccountName"] == "espalier-trainer") is acts
    assert ("sandboxes" in _reach(manifest)) is acts
    assert _reach(manifest) >= {"s3", "mlflow"}


@pytest.mark.parametrize("stage", STAGES)
def test_only_stages_that_compute_on_a_policy_get_gpus(stage):
    pod = _pod(job(stage, CLUSTER))
    (container,) = pod["containers"]
    gpus = container["resources"]["limits"].get("nvidia.com/gpu")
    assert gpus == ("8" if stage in POLICY_STAGES else None)
    assert pod["nodeSelector"] == {"pool": "h200" if gpus else "batch"}
    assert ("tolerations" in pod) is (gpus is not None)


@pytest.mark.parametrize(
    ("stage", "settings"), [("train", NODES), *((stage, TRAINER) for stage in RUNTIMES)]
)
def test_a_launcher_needs_no_gpu_and_no_sandbox(stage, settings):
    manifest = job(stage, settings)
    pod = _pod(manifest)
    assert pod["serviceAccountName"] == "espalier-training-launcher"
    assert "nvidia.com/gpu" not in pod["containers"][0]["resources"]["limits"]
    assert _reach(manifest) == {"s3", "mlflow", "kubernetes"}


def test_without_a_claim_the_workspace_ends_with_the_pod():
    volumes = {volume["name"]: volume for volume in _pod(job("train", LAPTOP_SIZED))["volumes"]}
    assert volumes["workspace"]["emptyDir"]
    assert volumes.keys() == {"tmp", "workspace"}


def test_a_refusal_fails_the_job_and_a_disruption_is_free():
    ignored, refused = job("train", LAPTOP_SIZED)["spec"]["podFailurePolicy"]["rules"]
    assert ignored["action"] == "Ignore"
    assert ignored["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert refused["action"] == "FailJob"
    assert refused["onExitCodes"]["values"] == [1, 2]


@pytest.mark.parametrize("settings", [CLUSTER, NODES, TRAINER])
def test_the_job_names_the_queue_and_its_pods_do_not(settings):
    manifest = job("train", settings)
    pods = manifest["spec"]["template"]["metadata"]["labels"]
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "espalier"
    assert "kueue.x-k8s.io/queue-name" not in pods


def test_the_entrypoint_quotes_the_driver_command():
    command = ("sh", "-ec", 'printf "%s" "$0"', "it's $HOME\n", "--executor_input", '{"a": "b"}')
    manifest = ray_job(order(NODES, command=command))
    assert tuple(shlex.split(manifest["spec"]["entrypoint"])) == command


def test_ray_nodes_have_slots_for_every_process_and_the_driver():
    on_gpus, on_cpus = (
        ray_job(order(settings))["spec"]
        for settings in (NODES, NODES.model_copy(update={"gpus": GpuConfig()}))
    )
    (gpu_nodes,), (cpu_nodes,) = (
        spec["rayClusterSpec"]["workerGroupSpecs"] for spec in (on_gpus, on_cpus)
    )
    assert gpu_nodes["rayStartParams"] == {"num-gpus": "8"}
    assert (on_gpus["entrypointNumGpus"], on_gpus.get("entrypointNumCpus")) == (1, None)
    assert cpu_nodes["rayStartParams"] == {"num-cpus": "1"}
    assert (on_cpus["entrypointNumCpus"], on_cpus.get("entrypointNumGpus")) == (1, None)
    (container,) = cpu_nodes["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["cpu"] == NODES.resources.cpu_limit
    assert container["image"] == NODES.images.train


def test_no_process_of_ray_tells_its_makers_about_the_cluster():
    spec = every_manifest()["ray-job"]["spec"]["rayClusterSpec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        assert {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"} in container["env"]


@pytest.mark.parametrize("name", ["ray-job", "train-job-on-gpus"])
def test_a_launched_object_is_deleted_with_its_launcher(name):
    manifest = every_manifest()[name]
    (owner,) = manifest["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Job", "r17-train")


def test_what_submits_a_ray_job_holds_no_credentials():
    submitter = json.dumps(every_manifest()["ray-job"]["spec"]["submitterPodTemplate"])
    assert "secret" not in submitter
    assert "persistentVolumeClaim" not in submitter


def test_the_longest_names_fit():
    run_id = "a" * 36
    assert len(run_object_name(run_id, LONGEST_STAGE)) <= 63
    assert len(ray_job(order(NODES, run_id=run_id))["metadata"]["name"]) <= 47  # KubeRay's limit
    for stage in RUNTIMES:
        name = train_job(order(TRAINER, stage=stage, run_id=run_id))["metadata"]["name"]
        assert len(f"{name}-node-0-0-abcde") <= 63  # of the JobSet's pods


@pytest.mark.parametrize("run_id", ["", "R17", "-r", "r-", "a" * 37, "r_1", "r.1", "r\n"])
def test_a_run_id_that_cannot_be_a_name_is_refused(run_id):
    with pytest.raises(ManifestError, match="cannot name a run"):
        stage_job("train", ("x",), run_id=run_id, settings=LAPTOP_SIZED, environment={})


def test_manifests_of_equal_settings_are_equal_and_share_nothing():
    first, second = every_manifest(), every_manifest()
    assert first == second
    first["job-train-on-gpus"]["metadata"]["labels"]["team"] = "others"
    first["job-train-on-gpus"]["spec"]["template"]["spec"]["nodeSelector"]["pool"] = "none"
    assert second == every_manifest()
    assert CLUSTER.node_selector == {"pool": "batch"}


def test_namespaces_and_names_of_the_profile_are_used_throughout():
    settings = KubernetesConfig(
        pipeline_namespace="one", s3_secret="keys", endpoints="where", workspace_claim="shared"
    )
    text = json.dumps(job("ingest", settings))
    assert '"namespace": "one"' in text
    assert all(f'"{name}"' in text for name in ("keys", "where", "shared"))
    assert "espalier-s3" not in text


def test_a_train_job_has_a_letter_first_and_a_queue():
    manifest = train_job(order(TRAINER, run_id="0b7c"))
    assert manifest["metadata"]["name"] == "tj-0b7c-train"
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "espalier"
    # pods with the label would be queued once more, by themselves
    assert "queue-name" not in str(manifest["spec"])


def test_a_train_job_has_one_node_for_all_processes():
    trainer = train_job(order(TRAINER, processes=8))["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (1, 8)
    assert trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == "8"


def test_a_train_job_holds_no_secret_but_names_it():
    env = train_job(order(LAPTOP_TRAINER))["spec"]["trainer"]["env"]
    named = {entry["name"]: entry for entry in env}
    assert len(named) == len(env)
    assert named["AWS_SECRET_ACCESS_KEY"]["valueFrom"]["secretKeyRef"]["name"] == "espalier-s3"
    assert named["ESPALIER_ARTIFACTS"]["valueFrom"]["configMapKeyRef"]["optional"] is True


def test_a_tracking_server_that_is_given_replaces_the_endpoints():
    environment = {"MLFLOW_TRACKING_URI": "http://mlflow:5000"}
    env = train_job(order(LAPTOP_TRAINER, environment=environment))["spec"]["trainer"]["env"]
    (found,) = [entry for entry in env if entry["name"] == "MLFLOW_TRACKING_URI"]
    assert found["value"] == "http://mlflow:5000"

import json
import shlex

import pytest

from espalier.chain import STAGES
from espalier.cluster.objects.job import stage_job, training_ray_job
from espalier.cluster.objects.names import run_object_name
from espalier.config import GpuConfig, KubernetesConfig
from espalier.records import ManifestError
from tests.unit.cluster.objects.samples import (
    CLUSTER,
    LAPTOP_SIZED,
    LAUNCHER,
    NODES,
    RUN,
    STEP,
    every_manifest,
    job,
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


def test_a_ray_launcher_needs_no_gpu_and_no_sandbox():
    manifest = job("train", NODES)
    pod = _pod(manifest)
    assert pod["serviceAccountName"] == "espalier-ray-launcher"
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


@pytest.mark.parametrize("settings", [CLUSTER, NODES])
def test_the_job_names_the_queue_and_its_pods_do_not(settings):
    manifest = job("train", settings)
    pods = manifest["spec"]["template"]["metadata"]["labels"]
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "espalier"
    assert "kueue.x-k8s.io/queue-name" not in pods


def test_the_entrypoint_quotes_the_driver_command():
    command = ("sh", "-ec", 'printf "%s" "$0"', "it's $HOME\n", "--executor_input", '{"a": "b"}')
    manifest = training_ray_job(command, run_id=RUN, owner=LAUNCHER, settings=NODES, environment={})
    assert tuple(shlex.split(manifest["spec"]["entrypoint"])) == command


def test_ray_nodes_have_slots_for_every_process_and_the_driver():
    on_gpus, on_cpus = (
        training_ray_job(STEP, run_id=RUN, owner=LAUNCHER, settings=settings, environment={})[
            "spec"
        ]
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


def test_a_ray_job_is_deleted_with_its_launcher():
    manifest = every_manifest()["ray-job"]
    assert manifest["spec"]["shutdownAfterJobFinishes"] is True
    (owner,) = manifest["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Job", "r17-train")


def test_what_submits_a_ray_job_holds_no_credentials():
    submitter = json.dumps(every_manifest()["ray-job"]["spec"]["submitterPodTemplate"])
    assert "secret" not in submitter
    assert "persistentVolumeClaim" not in submitter


def test_the_longest_names_fit():
    run_id = "a" * 36
    assert len(run_object_name(run_id, LONGEST_STAGE)) <= 63
    ray = training_ray_job(("x",), run_id=run_id, owner=LAUNCHER, settings=NODES, environment={})
    assert len(ray["metadata"]["name"]) <= 47  # KubeRay's own limit


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

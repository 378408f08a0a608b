import json
import shlex

import pytest

from espalier.chain import STAGES
from espalier.cluster.objects.job import OWNER_VARIABLES, RUN_ID_VARIABLE, stage_job
from espalier.cluster.objects.names import run_object_name
from espalier.cluster.objects.ray_job import ray_job
from espalier.cluster.objects.train_job import RUNTIMES, train_job
from espalier.config import GpuConfig
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
def test_a_launcher_needs_its_owner_but_no_gpu_or_sandbox(stage, settings):
    manifest = job(stage, settings)
    pod = _pod(manifest)
    assert pod["serviceAccountName"] == "espalier-training-launcher"
    assert "nvidia.com/gpu" not in pod["containers"][0]["resources"]["limits"]
    assert _reach(manifest) == {"s3", "mlflow", "kubernetes"}
    variables = {RUN_ID_VARIABLE, *OWNER_VARIABLES}
    assert variables <= {entry["name"] for entry in pod["containers"][0]["env"]}
    (plain,) = _pod(job(stage, LAPTOP_SIZED))["containers"]
    assert not variables & {entry["name"] for entry in plain["env"]}


def test_the_entrypoint_quotes_the_driver_command():
    command = ("sh", "-ec", 'printf "%s" "$0"', "it's $HOME\n", "--executor_input", '{"a": "b"}')
    manifest = ray_job(order(NODES, command=command))
    assert tuple(shlex.split(manifest["spec"]["entrypoint"])) == command


def test_ray_nodes_have_slots_for_every_process_and_the_driver():
    without_gpus = NODES.model_copy(update={"gpus": GpuConfig()})
    for settings, kind, count in ((NODES, "Gpus", "8"), (without_gpus, "Cpus", "1")):
        spec = ray_job(order(settings))["spec"]
        assert {k: v for k, v in spec.items() if "entrypointNum" in k} == {
            f"entrypointNum{kind}": 1
        }
        (nodes,) = spec["rayClusterSpec"]["workerGroupSpecs"]
        assert nodes["rayStartParams"] == {f"num-{kind.lower()}": count}
    (container,) = nodes["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["cpu"] == NODES.resources.cpu_limit
    assert container["image"] == NODES.images.train


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


def test_a_tracking_server_that_is_given_replaces_the_endpoints():
    environment = {"MLFLOW_TRACKING_URI": "http://mlflow:5000"}
    env = train_job(order(LAPTOP_TRAINER, environment=environment))["spec"]["trainer"]["env"]
    (found,) = [entry for entry in env if entry["name"] == "MLFLOW_TRACKING_URI"]
    assert found["value"] == "http://mlflow:5000"

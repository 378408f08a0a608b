"""What the pods of the compiled pipeline get: its platform settings, as Kubeflow reads them."""

import pytest
import yaml

from espalier.chain import STAGES
from espalier.cluster.objects.job import OWNER_VARIABLES, RUN_ID_VARIABLE, stage_job
from espalier.cluster.objects.names import QUEUE_LABEL
from espalier.cluster.objects.train_job import RUNTIMES
from espalier.config import KubeflowConfig, KubernetesConfig
from espalier.config.cluster import amount
from espalier.orchestration.pipelines import compile_pipeline
from espalier.records import ProfileError
from tests.unit.cluster.objects.samples import CLUSTER, LAPTOP_SIZED, NODES, TRAINER

pytestmark = pytest.mark.slow  # compiles the pipeline

GPU_STAGES = sorted(stage.name for stage in STAGES.values() if stage.uses_policy)


def compiled(folder, settings, image=None):
    """Container specs and platform settings by stage."""
    out = folder / "pipeline.yaml"
    compile_pipeline(out, {}, settings, image)
    pipeline, platform = yaml.safe_load_all(out.read_text())
    executors = pipeline["deploymentSpec"]["executors"]
    placed = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert executors.keys() == placed.keys()
    return {
        name.removeprefix("exec-").replace("-", "_"): (executors[name]["container"], placed[name])
        for name in executors
    }


@pytest.fixture(scope="module")
def laptop(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("laptop"), LAPTOP_SIZED)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("cluster"), CLUSTER)


def job(stage, settings):
    """The same stage as a Job: both have to agree."""
    manifest = stage_job(stage, ("x",), run_id="r1", settings=settings, environment={})
    return manifest["spec"]["template"]


def test_every_step_is_placed(laptop, cluster):
    assert laptop.keys() == cluster.keys() == {"resolve_profile", "require_valid", *STAGES}


every_stage = pytest.mark.parametrize("stage", STAGES)


@pytest.fixture(params=["laptop", "cluster"])
def placed_as(request):
    """A compiled pipeline, and the settings that it was compiled with."""
    settings = LAPTOP_SIZED if request.param == "laptop" else CLUSTER
    return request.getfixturevalue(request.param), settings


@every_stage
def test_a_step_has_the_image_and_resources_of_its_job(stage, placed_as):
    pipeline, settings = placed_as
    container, _ = pipeline[stage]
    (wanted,) = job(stage, settings)["spec"]["containers"]
    assert container["image"] == wanted["image"]
    given = container["resources"]
    for kind, side in (("Request", "requests"), ("Limit", "limits")):
        for name, what in (("Cpu", "cpu"), ("Memory", "memory")):
            assert amount(given[f"resource{name}{kind}"]) == amount(wanted["resources"][side][what])
    gpus = wanted["resources"]["limits"].get("nvidia.com/gpu")
    assert given.get("accelerator", {}).get("resourceCount") == gpus
    assert given.get("accelerator", {}).get("resourceType") == (gpus and "nvidia.com/gpu")


@every_stage
def test_a_step_has_the_nodes_and_network_of_its_job(stage, placed_as):
    pipeline, settings = placed_as
    _, placed = pipeline[stage]
    template = job(stage, settings)
    assert placed.get("nodeSelector", {}).get("labels") == template["spec"].get("nodeSelector")
    assert placed.get("tolerations", []) == template["spec"].get("tolerations", [])
    reach = {k: v for k, v in template["metadata"]["labels"].items() if "may-reach" in k}
    labels = placed["podMetadata"]["labels"]
    assert labels.items() >= {**reach, **settings.labels, "espalier.dev/stage": stage}.items()
    assert {name for name in labels if "may-reach" in name} == reach.keys()


@pytest.mark.parametrize("stage", GPU_STAGES)
def test_a_step_with_gpus_has_shared_memory_for_nccl(stage, cluster, laptop):
    shared = {
        "volumeName": "shm", "mountPath": "/dev/shm", "medium": "Memory", "sizeLimit": "16Gi",
    }  # fmt: skip
    assert shared in cluster[stage][1]["emptyDirMounts"]
    assert shared not in laptop[stage][1]["emptyDirMounts"]


@every_stage
def test_the_disk_limit_is_the_size_of_each_volume_written(stage, placed_as):
    pipeline, settings = placed_as
    (wanted,) = job(stage, settings)["spec"]["containers"]
    sizes = {
        mount["mountPath"]: mount["sizeLimit"]
        for mount in pipeline[stage][1]["emptyDirMounts"]
        if "medium" not in mount
    }
    limit = wanted["resources"]["limits"]["ephemeral-storage"]
    assert sizes == dict.fromkeys(("/tmp", "/s3", "/minio", "/gcs"), limit)


def test_steps_share_the_cache_where_the_profile_names_a_claim(cluster, laptop):
    for stage in STAGES:
        container, placed = cluster[stage]
        (mount,) = placed["pvcMount"]
        assert (mount["constant"], mount["mountPath"]) == ("espalier-cache", "/cache")
        assert {"name": "XDG_CACHE_HOME", "value": "/cache"} in container["env"]
        assert "pvcMount" not in laptop[stage][1]


def test_credentials_come_from_secrets_and_addresses_from_config_maps(laptop):
    for stage in STAGES:
        (secret,) = laptop[stage][1]["secretAsEnv"]
        assert (secret["secretName"], secret["optional"]) == ("espalier-s3", True)
        assert {(e["secretKey"], e["envVar"]) for e in secret["keyToEnv"]} == {
            ("access_key", "AWS_ACCESS_KEY_ID"),
            ("secret_key", "AWS_SECRET_ACCESS_KEY"),
        }
        (addresses,) = laptop[stage][1]["configMapAsEnv"]
        assert addresses["configMapName"] == "espalier-endpoints"
        # MLFLOW_TRACKING_URI is left to Kubeflow's MLflow plugin, which sets it to a value
        assert {e["configMapKey"]: e["envVar"] for e in addresses["keyToEnv"]} == {
            "AWS_ENDPOINT_URL_S3": "AWS_ENDPOINT_URL_S3",
            "AWS_REGION": "AWS_REGION",
            "ESPALIER_ARTIFACTS": "ESPALIER_ARTIFACTS",
            "MLFLOW_TRACKING_URI": "ESPALIER_TRACKING_URI",
            "ESPALIER_METRICS_PORT": "ESPALIER_METRICS_PORT",
        }


def test_no_variable_of_a_pod_is_set_twice(cluster):
    for container, placed in cluster.values():
        names = [entry["name"] for entry in container.get("env", ())]
        names += [entry["name"] for entry in placed["fieldPathAsEnv"]]
        for kind in ("secretAsEnv", "configMapAsEnv"):
            names += [e["envVar"] for source in placed[kind] for e in source["keyToEnv"]]
        assert len(names) == len(set(names))


def test_every_step_knows_the_id_of_its_run(laptop):
    for _, placed in laptop.values():
        entry = {"name": RUN_ID_VARIABLE, "fieldPath": "metadata.labels['pipeline/runid']"}
        assert entry in placed["fieldPathAsEnv"]


def test_every_step_is_queued_where_the_profile_names_one(cluster, laptop):
    for stage in ("resolve_profile", *STAGES):
        assert cluster[stage][1]["podMetadata"]["labels"][QUEUE_LABEL] == "espalier"
        assert QUEUE_LABEL not in laptop[stage][1]["podMetadata"]["labels"]


def retry_policies(folder, settings):
    """Retry policies of the compiled pipeline's tasks, in seconds."""
    out = folder / "pipeline.yaml"
    compile_pipeline(out, {}, settings, None)
    pipeline, _ = yaml.safe_load_all(out.read_text())
    for task in pipeline["root"]["dag"]["tasks"].values():
        policy = task["retryPolicy"]
        yield {key: float(str(value).rstrip("s")) for key, value in policy.items()}


def test_every_retry_has_time_for_its_own_deadline(tmp_path):
    settings = KubernetesConfig(
        retries=3, deadline_s=7200, kubeflow=KubeflowConfig(retry_pause_s=60)
    )
    for policy in retry_policies(tmp_path, settings):
        assert (policy["maxRetryCount"], policy["backoffDuration"]) == (3, 60)
        pauses_s = sum(60 * policy["backoffFactor"] ** number for number in range(3))
        # Argo counts from the creation of the first pod and ends a running attempt at the end
        assert policy["backoffMaxDuration"] >= 4 * 7200 + pauses_s


def test_pods_are_not_root_and_end_in_time(laptop):
    for _, placed in laptop.values():
        assert placed["securityContext"]["runAsNonRoot"] is True
        assert int(placed["securityContext"]["runAsUser"]) == 65532
        assert int(placed["activeDeadlineSeconds"]) == LAPTOP_SIZED.deadline_s
        assert placed["imagePullPolicy"] == "IfNotPresent"


def test_fractions_of_gibibytes_are_compiled(tmp_path):
    settings = KubernetesConfig.model_validate({"resources": {"memory_request": "1.5Gi"}})
    container, _ = compiled(tmp_path, settings)["ingest"]
    assert container["resources"]["resourceMemoryRequest"] == str(3 << 29)


def test_an_image_that_is_given_is_that_of_every_step(tmp_path):
    found = compiled(tmp_path, CLUSTER, "registry.example/espalier:7")
    assert {container["image"] for container, _ in found.values()} == {
        "registry.example/espalier:7"
    }


@pytest.mark.parametrize("image", ["espalier", "espalier:latest"])
def test_an_image_that_may_be_another_tomorrow_is_refused(tmp_path, image):
    with pytest.raises(ProfileError, match=image):
        compile_pipeline(tmp_path / "p.yaml", {}, LAPTOP_SIZED, image)
    assert not (tmp_path / "p.yaml").exists()


def test_a_pipeline_that_is_for_no_cluster_is_left_alone():
    from espalier.orchestration.pipelines import load_pipeline

    platform = load_pipeline().platform_spec
    assert "kubernetes" not in platform.platforms


@pytest.mark.parametrize("settings", [NODES, TRAINER], ids=["nodes", "trainer"])
def test_training_elsewhere_is_launched_without_a_gpu(tmp_path, settings):
    found = compiled(tmp_path, settings)
    assert "train" not in found
    launched = {"train"} if settings is NODES else RUNTIMES.keys()
    assert {name for name in found if name.startswith("launch_")} == {
        f"launch_{stage}" for stage in launched
    }
    container, placed = found["launch_train"]
    assert "accelerator" not in container["resources"]
    assert container["image"] == NODES.images.cpu
    assert container["command"] == ["espalier", "step", "train"]
    words = container["args"]
    inputs = {words[n + 1] for n in _positions(words, "--input")}
    assert inputs == {
        f"{name}={{{{$.inputs.artifacts['{name}'].uri}}}}"
        for name in ("knowledge", "accepted", "curriculum", "warm_policy")
    }
    (output,) = _positions(words, "--output")
    (run,) = _positions(words, "--run")
    uri = "{{$.outputs.artifacts['trained_policy'].uri}}"
    assert words[output + 1] == uri
    assert words[run + 1] == f"{uri}-run"
    told = {entry["name"] for entry in container["env"]}
    told |= {entry["name"] for entry in placed["fieldPathAsEnv"]}
    assert told >= {RUN_ID_VARIABLE, *OWNER_VARIABLES}
    reach = {name for name in placed["podMetadata"]["labels"] if "may-reach" in name}
    assert reach == {f"espalier.dev/may-reach-{name}" for name in ("s3", "mlflow", "kubernetes")}


@pytest.mark.parametrize(
    "settings", [LAPTOP_SIZED, NODES, TRAINER], ids=["laptop", "nodes", "trainer"]
)
def test_no_placeholder_is_one_that_kubeflows_server_ignores(tmp_path, settings):
    out = tmp_path / "pipeline.yaml"
    compile_pipeline(out, {}, settings, None)
    text = out.read_text()
    assert not [word for word in ("Concat", "IfPresent") if f'"{word}"' in text]


def _positions(words, word):
    return [number for number, found in enumerate(words) if found == word]

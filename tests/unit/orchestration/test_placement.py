"""What the pods of the compiled pipeline get: its platform settings, as Kubeflow reads them."""

import pytest
import yaml

from espalier.chain import STAGES
from espalier.cluster.objects.job import OWNER_VARIABLES, RUN_ID_VARIABLE, stage_job
from espalier.cluster.objects.names import QUEUE_LABEL
from espalier.cluster.objects.pods import KUBEFLOW_ENDPOINTS
from espalier.cluster.objects.train_job import RUNTIMES
from espalier.config import KubeflowConfig, KubernetesConfig
from espalier.config.cluster import amount
from espalier.orchestration.pipelines import compile_pipeline
from espalier.records import ProfileError
from tests.factories.compiled_steps import compiled_steps
from tests.unit.cluster.objects.samples import CLUSTER, LAPTOP_SIZED, NODES, TRAINER

pytestmark = pytest.mark.slow  # compiles the pipeline


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


GIVE_WEIGHTS = {
    "synthesize", "prepare_policy", "warm_start", "filter_curriculum", "train", "evaluate",
}  # fmt: skip
"""Stages that may give policies to vLLM servers, where a run has some."""
every_stage = pytest.mark.parametrize("stage", STAGES)


@pytest.fixture(params=["laptop", "cluster"])
def placed_as(request):
    """A compiled pipeline, and the settings that it was compiled with."""
    settings = LAPTOP_SIZED if request.param == "laptop" else CLUSTER
    return request.getfixturevalue(request.param), settings


@every_stage
def test_a_step_has_the_image_and_resources_of_its_job(stage, placed_as):
    pipeline, settings = placed_as
    container, placed = pipeline[stage]
    (wanted,) = job(stage, settings)["spec"]["containers"]
    limits = wanted["resources"]["limits"]
    assert container["image"] == wanted["image"]
    given = container["resources"]
    for kind, side in (("Request", "requests"), ("Limit", "limits")):
        for name, what in (("Cpu", "cpu"), ("Memory", "memory")):
            assert amount(given[f"resource{name}{kind}"]) == amount(wanted["resources"][side][what])
    gpus = limits.get("nvidia.com/gpu")
    assert given.get("accelerator", {}).get("resourceCount") == gpus
    assert given.get("accelerator", {}).get("resourceType") == (gpus and "nvidia.com/gpu")
    volumes = {mount["mountPath"]: mount for mount in placed["emptyDirMounts"]}
    shared = volumes.pop("/dev/shm", None)  # NCCL's
    assert (shared and (shared["medium"], shared["sizeLimit"])) == (gpus and ("Memory", "16Gi"))
    assert volumes.keys() == {"/tmp", "/s3", "/minio", "/gcs"}
    assert {mount["sizeLimit"] for mount in volumes.values()} == {limits["ephemeral-storage"]}


@every_stage
def test_a_step_has_the_nodes_and_network_of_its_job(stage, placed_as):
    pipeline, settings = placed_as
    container, placed = pipeline[stage]
    template = job(stage, settings)
    assert placed.get("nodeSelector", {}).get("labels") == template["spec"].get("nodeSelector")
    assert placed.get("tolerations", []) == template["spec"].get("tolerations", [])
    reach = {k: v for k, v in template["metadata"]["labels"].items() if "may-reach" in k}
    labels = placed["podMetadata"]["labels"]
    assert labels.items() >= {**reach, **settings.labels, "espalier.dev/stage": stage}.items()
    assert {name for name in labels if "may-reach" in name} == reach.keys()
    mounts = [(mount["constant"], mount["mountPath"]) for mount in placed.get("pvcMount", ())]
    gives_weights = settings.workspace_claim and stage in GIVE_WEIGHTS
    workspace = [("espalier-workspace", "/workspace")] if gives_weights else []
    assert mounts == workspace + ([("espalier-cache", "/cache")] if settings.cache_claim else [])
    secrets = {v["secret"]["secretName"] for v in template["spec"]["volumes"] if "secret" in v}
    files = {(one["secretName"], one["mountPath"]) for one in placed.get("secretAsVolume", ())}
    assert files == {(name, f"/secrets/{name}") for name in secrets}
    assert secrets == set(settings.mounted_secrets)
    cached = {"name": "XDG_CACHE_HOME", "value": "/cache"} in container.get("env", ())
    assert cached is bool(settings.cache_claim)


def test_every_pod_has_its_rights_deadline_queue_and_run(placed_as):
    pipeline, settings = placed_as
    assert pipeline.keys() == {"resolve_profile", "require_valid", *STAGES}
    for name, (container, placed) in pipeline.items():
        assert placed["securityContext"]["runAsNonRoot"] is True
        assert int(placed["securityContext"]["runAsUser"]) == 65532
        assert int(placed["activeDeadlineSeconds"]) == settings.deadline_s
        paths = {entry["name"]: entry["fieldPath"] for entry in placed["fieldPathAsEnv"]}
        assert paths[RUN_ID_VARIABLE] == "metadata.labels['pipeline/runid']"
        # labels of sandboxes
        assert paths["ESPALIER_LABEL_RUN"] == "metadata.labels['pipeline/runid']"
        assert paths["ESPALIER_LABEL_STAGE"] == "metadata.labels['espalier.dev/stage']"
        if name != "require_valid":
            assert placed["podMetadata"]["labels"].get(QUEUE_LABEL) == settings.queue
        # Kubernetes would merge two variables of one name
        names = [entry["name"] for entry in container.get("env", ())]
        names += [entry["name"] for entry in placed["fieldPathAsEnv"]]
        for kind in ("secretAsEnv", "configMapAsEnv"):
            names += [e["envVar"] for source in placed[kind] for e in source["keyToEnv"]]
        assert len(names) == len(set(names))


def test_credentials_come_from_secrets_and_addresses_from_config_maps(laptop):
    for stage in STAGES:
        (secret,) = laptop[stage][1]["secretAsEnv"]
        assert (secret["secretName"], secret["optional"]) == ("espalier-s3", True)
        keys = {e["secretKey"]: e["envVar"] for e in secret["keyToEnv"]}
        assert keys == {"access_key": "AWS_ACCESS_KEY_ID", "secret_key": "AWS_SECRET_ACCESS_KEY"}
        (addresses,) = laptop[stage][1]["configMapAsEnv"]
        assert addresses["configMapName"] == "espalier-endpoints"
        found = {e["configMapKey"]: e["envVar"] for e in addresses["keyToEnv"]}
        assert found == KUBEFLOW_ENDPOINTS
        # Kubeflow's MLflow plugin sets it to a value
        assert "MLFLOW_TRACKING_URI" not in found.values()


def test_every_retry_has_time_for_its_own_deadline(tmp_path):
    kubeflow = KubeflowConfig(retry_pause_s=60)
    settings = KubernetesConfig(retries=3, deadline_s=7200, kubeflow=kubeflow)
    compile_pipeline(tmp_path / "p.yaml", {}, settings, None)
    pipeline, _ = yaml.safe_load_all((tmp_path / "p.yaml").read_text())
    for step in compiled_steps(pipeline).values():
        policy = {k: float(str(v).rstrip("s")) for k, v in step.task["retryPolicy"].items()}
        assert (policy["maxRetryCount"], policy["backoffDuration"]) == (3, 60)
        pauses_s = sum(60 * policy["backoffFactor"] ** number for number in range(3))
        # Argo counts from the creation of the first pod and ends a running attempt at the end
        assert policy["backoffMaxDuration"] >= 4 * 7200 + pauses_s


@pytest.fixture(scope="module")
def compiled_pipeline(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "pipeline.yaml"
    compile_pipeline(out, {}, KubernetesConfig(), None)
    return next(yaml.safe_load_all(out.read_text()))


def test_no_step_stands_in_a_loop_or_exit_handler(compiled_pipeline):
    """There Kubeflow ignores retries (kubeflow/pipelines#12389, #13897), and counts (#12131)."""
    steps = compiled_steps(compiled_pipeline)
    assert len(steps) == len(STAGES) + 2
    parts = compiled_pipeline["root"]["dag"]["tasks"]
    assert {step.part for step in steps.values()} - {""} < parts.keys()
    tasks = parts | {name: step.task for name, step in steps.items()}
    for name, task in tasks.items():
        assert not [key for key in task if "iterator" in key.lower() or "trigger" in key], name
    for name, step in steps.items():
        assert int(step.task["retryPolicy"]["maxRetryCount"]) == KubernetesConfig().retries, name


def test_what_stages_make_goes_by_uri(compiled_pipeline):
    """A parameter goes through the launcher's memory, the pod's definition and a database."""
    parameters = {
        name.removeprefix("comp-"): set(component.get("outputDefinitions", {})["parameters"])
        for name, component in compiled_pipeline["components"].items()
        if "parameters" in component.get("outputDefinitions", {})
    }
    assert parameters == {"resolve-profile": {"Output"}, "validate": {"verdict"}}


def test_an_image_that_is_given_is_that_of_every_step(tmp_path):
    image = "registry.example/espalier:7"
    settings = KubernetesConfig.model_validate({"resources": {"memory_request": "1.5Gi"}})
    found = compiled(tmp_path, settings, image)
    assert {container["image"] for container, _ in found.values()} == {image}
    requested = found["ingest"][0]["resources"]["resourceMemoryRequest"]
    assert requested == str(3 << 29), "a fraction of gibibytes"
    for unpinned in ("espalier", "espalier:latest"):
        with pytest.raises(ProfileError, match=unpinned):
            compile_pipeline(tmp_path / "other.yaml", {}, settings, unpinned)
    assert not (tmp_path / "other.yaml").exists()


@pytest.mark.parametrize("settings", [NODES, TRAINER], ids=["nodes", "trainer"])
def test_training_elsewhere_is_launched_without_a_gpu(tmp_path, settings):
    found = compiled(tmp_path, settings)
    launched = {"train"} if settings is NODES else RUNTIMES.keys()
    assert "train" not in found
    assert {name for name in found if "launch_" in name} == {f"launch_{name}" for name in launched}
    container, placed = found["launch_train"]
    assert "accelerator" not in container["resources"]
    assert container["image"] == NODES.images.cpu
    assert container["command"] == ["espalier", "step", "train"]
    words = list(zip(container["args"], container["args"][1:], strict=False))
    assert {value for option, value in words if option == "--input"} == {
        f"{name}={{{{$.inputs.artifacts['{name}'].uri}}}}" for name in STAGES["train"].inputs
    }
    uri = f"{{{{$.outputs.artifacts['{STAGES['train'].output}'].uri}}}}"
    assert {("--output", uri), ("--run", f"{uri}-run")} <= set(words)
    told = {entry["name"] for entry in (*container["env"], *placed["fieldPathAsEnv"])}
    assert told >= {RUN_ID_VARIABLE, *OWNER_VARIABLES}
    reach = {name for name in placed["podMetadata"]["labels"] if "may-reach" in name}
    assert reach == {f"espalier.dev/may-reach-{name}" for name in ("s3", "mlflow", "kubernetes")}
    # placeholders that Kubeflow's server ignores
    text = (tmp_path / "pipeline.yaml").read_text()
    assert not [word for word in ("Concat", "IfPresent") if f'"{word}"' in text]

"""Each profile of examples/ is parsed, compiled, and its objects of a cluster are rendered."""

from pathlib import Path

import pytest
import yaml

from espalier.chain import STAGES
from espalier.cluster.objects.job import launches, stage_job
from espalier.cluster.objects.launched import LaunchOrder
from espalier.cluster.objects.names import Owner
from espalier.cluster.objects.ray_job import ray_job
from espalier.config import load_profile
from espalier.environments import family_of
from espalier.orchestration.pipelines import compile_profile
from espalier.sandbox.pod import SandboxPodSettings, sandbox_pod

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
PROFILES = sorted(path for path in EXAMPLES.rglob("*.toml") if path.name != "pyproject.toml")
OWNER = Owner("batch/v1", "Job", "r1-train", "6c8f2b1e-0000-4000-8000-000000000002")
COMMAND = ("espalier", "step")

every_profile = pytest.mark.parametrize(
    "path", PROFILES, ids=[path.relative_to(EXAMPLES).as_posix() for path in PROFILES]
)


def overrides(path):
    """A family that is not installed here is named by where it is."""
    own = 'environment.name="parcel_desk:ParcelDesk"'
    return (own,) if path.parent.name == "own_environment" else ()


@pytest.fixture
def example(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(EXAMPLES / "own_environment")
    return load_profile(path, overrides(path))


@every_profile
def test_a_profile_parses_and_its_files_are_there(path, example):
    assert family_of(example).specs
    files = example.knowledge.external_files() | example.environment.external_files()
    files |= example.warm_start.external_files()
    assert [file for file in files.values() if file and not file.exists()] == []
    name = path.relative_to(EXAMPLES).as_posix()
    assert f"| `{name}` |" in (EXAMPLES / "README.md").read_text()


@every_profile
@pytest.mark.slow
def test_a_profile_compiles_with_every_stage(path, example, tmp_path):
    out = tmp_path / "pipeline.yaml"
    compile_profile(str(path), overrides(path), out)
    pipeline, platform = yaml.safe_load_all(out.read_text(encoding="utf-8"))
    executors = pipeline["deploymentSpec"]["executors"]
    names = {name.removeprefix("exec-").replace("-", "_") for name in executors}
    expected = {f"launch_{s}" if launches(s, example.kubernetes) else s for s in STAGES}
    assert expected <= names
    images = {executor["container"]["image"] for executor in executors.values()}
    has_gpus = example.kubernetes.gpus.count
    computing = {example.kubernetes.images.train} if has_gpus else set()
    assert images == {example.kubernetes.images.cpu, *computing}
    assert platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"].keys() == (
        executors.keys()
    )


@every_profile
def test_each_stage_is_rendered_as_a_job(path, example):
    settings = example.kubernetes
    for stage in STAGES:
        job = stage_job(stage, COMMAND, run_id="r1", settings=settings, environment={})
        assert job["kind"] == "Job"
        assert job["metadata"]["namespace"] == settings.pipeline_namespace
        (container,) = job["spec"]["template"]["spec"]["containers"]
        gpus = container["resources"]["limits"].get(settings.gpus.resource)
        has_gpus = (
            STAGES[stage].uses_policy and settings.gpus.count and not launches(stage, settings)
        )
        assert gpus == (str(settings.gpus.count) if has_gpus else None), stage


def test_ray_trains_on_every_gpu_of_its_nodes():
    example = load_profile(EXAMPLES / "ray-vllm.toml")
    order = LaunchOrder(
        stage="train", command=COMMAND, run_id="r1", owner=OWNER, settings=example.kubernetes,
        environment={},
    )  # fmt: skip
    job = ray_job(order)
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (worker,) = group["template"]["spec"]["containers"]
    gpus = int(worker["resources"]["limits"]["nvidia.com/gpu"])
    assert group["replicas"] * gpus == example.training.processes
    assert launches("train", example.kubernetes)
    assert job["spec"]["shutdownAfterJobFinishes"]


def test_programs_run_under_gvisor_and_without_a_token():
    example = load_profile(EXAMPLES / "kubernetes-gvisor.toml")
    settings = SandboxPodSettings(
        image=example.environment.sandbox.image,
        namespace=example.kubernetes.sandbox_namespace,
        pods=example.kubernetes.sandboxes,
    )
    pod = sandbox_pod(settings, {}, name="r1-s0", run_id="r1", owner=OWNER)
    assert pod["spec"]["runtimeClassName"] == "gvisor"
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["nodeSelector"] == {"sandbox": "gvisor"}

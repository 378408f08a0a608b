"""Labels by which cost tools tell what a run, a stage, a profile and a team cost."""

import os
import re
from pathlib import Path

import pytest
import yaml

from espalier.chain import STAGES
from espalier.cluster.objects.job import stage_job
from espalier.cluster.objects.names import OWN_LABEL_VARIABLES, Owner
from espalier.cluster.objects.ray_job import ray_job
from espalier.cluster.objects.train_job import train_job
from espalier.config import Profile, load_profile
from espalier.orchestration.pipelines import compile_profile
from espalier.sandbox.choice import backend_for
from espalier.sandbox.pod import sandbox_claim, sandbox_pod, sandbox_template, sandbox_warm_pool
from tests.unit.cluster.objects.samples import NOON, order
from tests.unit.k8s.rendering import K8S, every_overlay, needs_kubectl, pod_templates, rendered

ROOT = Path(__file__).parents[3]
OWNER = Owner("batch/v1", "Job", "r17-train", "6c8f2b1e-0000-4000-8000-000000000002")
OWN = ["kubernetes.labels={team = 'agents', owner = 'ada'}"]
PAYER = {"team": "agents", "owner": "ada", "espalier.dev/profile": "kubernetes-gvisor"}
RUN = {"espalier.dev/run": "r17"}


def profile(*overrides):
    return load_profile(ROOT / "examples" / "kubernetes-gvisor.toml", (*OWN, *overrides))


def job(stage, settings):
    return stage_job(stage, ("espalier",), run_id="r17", settings=settings, environment={})


def labels_of(manifest):
    """Those of the object and of every pod that it makes."""
    return [manifest["metadata"]["labels"], *(pod.labels for pod in pod_templates([manifest]))]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stages_job_and_pod_say_who_pays(stage):
    wanted = PAYER | RUN | {"espalier.dev/stage": stage}
    for labels in labels_of(job(stage, profile().kubernetes)):
        assert wanted.items() <= labels.items()


def test_every_pod_of_a_ray_job_says_who_pays():
    settings = profile(
        'kubernetes.trainer="rayjob"', "kubernetes.ray.workers=2", "training.processes=2"
    ).kubernetes
    found = labels_of(ray_job(order(settings)))
    assert len(found) == 4  # the job, its submitter, head and workers
    for labels in found:
        assert (PAYER | RUN | {"espalier.dev/stage": "train"}).items() <= labels.items()


@pytest.mark.parametrize("stage", ["warm_start", "train"])
def test_a_train_job_and_its_pods_say_who_pays(stage):
    manifest = train_job(order(profile('kubernetes.trainer="trainjob"').kubernetes, stage=stage))
    (patch,) = manifest["spec"]["runtimePatches"]
    (job_of_it,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = job_of_it["template"]["spec"]["template"]
    for labels in (manifest["metadata"]["labels"], pod["metadata"]["labels"]):
        assert (PAYER | RUN | {"espalier.dev/stage": stage}).items() <= labels.items()
    told = {variable["name"] for variable in manifest["spec"]["trainer"]["env"]}
    assert told >= set(OWN_LABEL_VARIABLES.values())


def environment_in(pod):
    """Variables that a node would take from the pod's labels."""
    (container,) = pod.spec["containers"]
    found = {}
    for variable in container["env"]:
        path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        if match := re.fullmatch(r"metadata\.labels\['(.+)'\]", path):
            found[variable["name"]] = pod.labels.get(match[1], "")
    return found


@pytest.mark.parametrize("stage", ["warm_start", "train", "evaluate"])
def test_sandboxes_are_paid_by_the_step_that_makes_them(stage, monkeypatch):
    asked = profile()
    (pod,) = pod_templates([job(stage, asked.kubernetes)])
    for name, value in environment_in(pod).items():
        monkeypatch.setenv(name, value)
    backend = backend_for(asked.environment.sandbox, asked.kubernetes)
    settings, run_id = backend.settings, backend.run_id
    made = [
        sandbox_pod(settings, {}, name="s0", run_id=run_id, owner=OWNER),
        sandbox_template(settings, {}, run_id=run_id, owner=OWNER),
        sandbox_warm_pool(settings, run_id=run_id, owner=OWNER, replicas=1),
        sandbox_claim(settings, name="c0", run_id=run_id, owner=OWNER, now=NOON),
    ]
    for manifest in made:
        for labels in labels_of(manifest):
            assert (PAYER | RUN | {"espalier.dev/stage": stage}).items() <= labels.items()
            # two stages of a run may play at once, and each watches its own
            assert labels["app.kubernetes.io/instance"] == run_id


def test_outside_a_pod_sandboxes_are_of_no_run(monkeypatch):
    for name in OWN_LABEL_VARIABLES.values():
        monkeypatch.delenv(name, raising=False)
    asked = profile()
    labels = backend_for(asked.environment.sandbox, asked.kubernetes).settings.labels
    assert labels == asked.kubernetes.labels


@pytest.mark.slow
def test_every_step_of_kubeflow_says_who_pays(tmp_path):
    out = tmp_path / "pipeline.yaml"
    compile_profile(str(ROOT / "examples" / "kubernetes-gvisor.toml"), tuple(OWN), out)
    _, platform = yaml.safe_load_all(out.read_text(encoding="utf-8"))
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert len(executors) >= len(STAGES)
    for settings in executors.values():
        labels = settings["podMetadata"]["labels"]
        assert PAYER.items() <= labels.items()
        assert labels["espalier.dev/stage"]
        paths = {entry["name"]: entry["fieldPath"] for entry in settings["fieldPathAsEnv"]}
        # Kubeflow has the run's id under a label of its own; sandboxes get it under ours
        assert paths["ESPALIER_LABEL_RUN"] == "metadata.labels['pipeline/runid']"
        assert paths["ESPALIER_LABEL_STAGE"] == "metadata.labels['espalier.dev/stage']"


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("laptop", "laptop"),
        ("Größe & Co. 3", "Gr-e-Co.-3"),
        ("x" * 80, "x" * 63),
        ("...", ""),
    ],
)
def test_a_profiles_name_becomes_a_label_that_kubernetes_takes(name, label):
    labels = Profile(name=name).kubernetes.labels
    assert labels == {"espalier.dev/profile": label}


def test_a_profile_that_was_written_out_reads_back_the_same():
    asked = profile()
    assert Profile.model_validate_json(asked.model_dump_json()) == asked
    renamed = asked.model_dump(mode="json") | {"name": "other"}
    assert Profile.model_validate(renamed).kubernetes.labels["espalier.dev/profile"] == "other"


@needs_kubectl
@every_overlay
def test_what_is_installed_says_what_it_is_for(folder):
    for pod in pod_templates(rendered(folder)):
        assert pod.labels["app.kubernetes.io/part-of"] == "espalier", pod.owner
        assert pod.labels["app.kubernetes.io/component"], pod.owner


@needs_kubectl
def test_an_overlay_gives_all_that_is_installed_a_payer(tmp_path):
    """As docs/operations.md says it."""
    (block,) = re.findall(
        r"(?m)^    labels:\n(?:    .*\n)+", (ROOT / "docs" / "operations.md").read_text()
    )
    at = tmp_path / "mine"
    at.mkdir()
    resources = [os.path.relpath(K8S / "overlays" / "gpu", at)]
    kustomization = {"resources": resources, **yaml.safe_load(block)}
    (at / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    found = pod_templates(rendered(at))
    assert len(found) >= 6
    for pod in found:
        assert {"team": "agents", "owner": "ada"}.items() <= pod.labels.items(), pod.owner


def test_the_documentation_names_every_label():
    page = (ROOT / "docs" / "operations.md").read_text()
    for label in (*PAYER, *OWN_LABEL_VARIABLES, "app.kubernetes.io/component", "pipeline/runid"):
        assert f"`{label}`" in page or f"| {label} |" in page, label

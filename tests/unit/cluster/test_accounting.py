"""Labels by which cost tools tell what a run, a stage, a profile and a team cost."""

import re
from pathlib import Path

import pytest

from espalier.cluster.objects.job import stage_job
from espalier.cluster.objects.names import OWN_LABEL_VARIABLES, Owner
from espalier.config import Profile, load_profile
from espalier.sandbox.choice import backend_for
from espalier.sandbox.pod import sandbox_claim, sandbox_pod, sandbox_template, sandbox_warm_pool
from tests.unit.cluster.objects.samples import NOON
from tests.unit.k8s.rendering import pod_templates

ROOT = Path(__file__).parents[3]
OWNER = Owner("batch/v1", "Job", "r17-train", "6c8f2b1e-0000-4000-8000-000000000002")
OWN = ["kubernetes.labels={team = 'agents', owner = 'ada'}"]
PAYER = {"team": "agents", "owner": "ada", "espalier.dev/profile": "kubernetes-gvisor"}
RUN = {"espalier.dev/run": "r17"}


def profile():
    return load_profile(ROOT / "examples" / "kubernetes-gvisor.toml", OWN)


def job(stage, settings):
    return stage_job(stage, ("espalier",), run_id="r17", settings=settings, environment={})


def labels_of(manifest):
    """Those of the object and of every pod that it makes."""
    return [manifest["metadata"]["labels"], *(pod.labels for pod in pod_templates([manifest]))]


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
    for name in OWN_LABEL_VARIABLES.values():
        monkeypatch.delenv(name, raising=False)
    outside = backend_for(asked.environment.sandbox, asked.kubernetes).settings.labels
    assert outside == asked.kubernetes.labels
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
    for labels in (labels for manifest in made for labels in labels_of(manifest)):
        assert (PAYER | RUN | {"espalier.dev/stage": stage}).items() <= labels.items()
        # two stages of a run may play at once, and each watches its own
        assert labels["app.kubernetes.io/instance"] == run_id


@pytest.mark.parametrize(
    ("name", "label"), [("Größe & Co. 3", "Gr-e-Co.-3"), ("x" * 80, "x" * 63), ("...", "")]
)
def test_a_profiles_name_becomes_a_label_that_kubernetes_takes(name, label):
    assert Profile(name=name).kubernetes.labels == {"espalier.dev/profile": label}
    made = profile().model_dump(mode="json")
    assert Profile.model_validate(made) == profile()
    renamed = Profile.model_validate(made | {"name": name})
    assert renamed.kubernetes.labels["espalier.dev/profile"] == label

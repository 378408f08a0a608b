"""Runs as the run form of Kubeflow's pages sends them.

Facts are those of kubeflow/pipelines 2.17, below frontend/src: what is uploaded (lib/Apis.ts,
uploadPipelineV2), what the fields start with and what becomes of their texts
(lib/NewRunParametersUtils.ts), and the request (pages/NewRunV2.tsx, startRun).
"""

import json
import uuid
from pathlib import Path

from tests.cluster.kubeflow.runs import ACCOUNT, SETTINGS, SMALL, espalier
from tests.unit.k8s.allowed_verbs import PIPELINE

EXPERIMENT = "from-the-form"
MODEL = "espalier-search-agent"
"""What the run registers, and what the serving controller of k8s/base follows."""
TYPED = {
    "profile": "smoke",
    "seed": "7",
    "overrides": "; ".join(
        (
            *SETTINGS,
            *(one for one in SMALL if not one.startswith("training.steps=")),
            f"registry.model_name={MODEL}",
        )
    ),
    "training_steps": "2",
    "learning_rate": "0.0005",
}
"""Fields of every kind, other than what a pipeline for laptop starts with."""


class RefusedByForm(Exception):
    """A text that is shown in red: the button of the form cannot be pressed."""


def compiled(folder, *, profile):
    """The file of a pipeline as a user compiles it for this cluster."""
    path = Path(folder) / "pipeline.yaml"
    words = [f"--set={setting}" for setting in SETTINGS]
    done = espalier("compile", f"--profile={profile}", f"--out={path}", *words)
    assert done.returncode == 0, done.stderr
    return path


def uploaded(kubeflow, folder, *, profile):
    """The version of a pipeline that a user compiled and uploaded, as its page shows it.

    Args:
        kubeflow: its API.
        folder: for the compiled pipeline.
        profile: that the form starts with.
    """
    path = compiled(folder, profile=profile)
    name = f"form-{uuid.uuid4().hex[:8]}"
    pipeline = kubeflow.upload(
        path, name=name, display_name=name, description="", namespace=PIPELINE
    )
    versions = kubeflow.get(f"pipelines/{pipeline['pipeline_id']}/versions")
    (version,) = versions["pipeline_versions"]
    return version


def request(kubeflow, version, name, typed):
    """What the form sends for a version when its fields have been changed.

    Args:
        kubeflow: its API.
        version: from `uploaded`.
        name: of the run.
        typed: field -> the text that a user typed into it.

    Raises:
        RefusedByForm: the form would not send it.
    """
    spec = version["pipeline_spec"].get("pipeline_spec", version["pipeline_spec"])
    fields = spec["root"]["inputDefinitions"]["parameters"]
    texts = {
        field: _text(described["defaultValue"])
        for field, described in fields.items()
        if "defaultValue" in described
    }
    if missing := sorted(fields.keys() - texts.keys() - typed.keys()):
        raise RefusedByForm(f"{', '.join(missing)}: Missing parameter.")
    return {
        "description": "",
        "display_name": name,
        "experiment_id": experiment(kubeflow),
        "pipeline_version_reference": {
            "pipeline_id": version["pipeline_id"],
            "pipeline_version_id": version["pipeline_version_id"],
        },
        "runtime_config": {
            "parameters": {
                field: _value(field, text, fields[field]["parameterType"])
                for field, text in {**texts, **typed}.items()
            }
        },
        "service_account": ACCOUNT,
    }


def experiment(kubeflow):
    """Id of the one of these runs."""
    found = kubeflow.get("experiments", namespace=PIPELINE, page_size=100).get("experiments", [])
    for one in found:
        if one["display_name"] == EXPERIMENT:
            return one["experiment_id"]
    made = kubeflow.post("experiments", {"display_name": EXPERIMENT, "namespace": PIPELINE})
    return made["experiment_id"]


def _text(default):
    """What a field shows at first."""
    return default if isinstance(default, str) else json.dumps(default)


def _value(field, text, kind):
    """What is sent for the text in a field; JavaScript has one kind of number."""
    if kind == "STRING":
        return text
    try:
        number = float(text)
    except ValueError:
        number = None
    if number is None or (kind == "NUMBER_INTEGER" and not number.is_integer()):
        raise RefusedByForm(f"{field}: {text!r} is no {kind}")
    return int(number) if number.is_integer() else number

"""A profile as a run on Kubeflow: compiled, uploaded as a version named after its content, started.

The version's name is the digest of the compiled pipeline: equal pipelines are uploaded once, and a
command that was broken off between upload and start finds its version again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espalier.config import KubeflowConfig, Profile
from espalier.orchestration.kubeflow_api import KubeflowApi
from espalier.orchestration.pipelines import compile_pipeline, form_defaults
from espalier.records import ClusterError, file_digest
from espalier.steps.profiles import named_profile

_DIGEST_CHARS = 12


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a run, or a schedule of runs, is made of."""

    profile: Profile
    version: dict[str, str]
    """pipeline_id and pipeline_version_id."""
    experiment_id: str
    parameters: dict[str, str | int]

    def body(self, name: str) -> dict[str, Any]:
        """The fields that V2beta1Run and V2beta1RecurringRun have in common."""
        kubeflow = self.profile.kubernetes.kubeflow
        account = kubeflow.service_account
        return {
            "display_name": name,
            "experiment_id": self.experiment_id,
            "pipeline_version_reference": self.version,
            "runtime_config": {"parameters": self.parameters},
            **({"service_account": account} if account else {}),
        }


def submit(api: KubeflowApi, name: str | None, profile: str, overrides: Sequence[str]) -> str:
    """Start one run and return its id.

    Args:
        api: of the server.
        name: of the run; None is the profile's.
        profile: name or path, see `named_profile`.
        overrides: `section.key=value` each.

    Raises:
        ProfileError: the profile, or one of the overrides, is refused.
        ClusterError: the server is away, or refuses.
    """
    prepared = prepare(api, profile, overrides)
    started = api.post("/runs", prepared.body(name or prepared.profile.name))
    return _id(started, "run_id")


def prepare(api: KubeflowApi, profile: str, overrides: Sequence[str]) -> Prepared:
    """Compile, upload where that version is not there yet, and find or make the experiment.

    Raises:
        ProfileError: the profile, or one of the overrides, is refused.
        ClusterError: the server is away, or refuses.
    """
    resolved = named_profile(profile, overrides)
    parameters = form_defaults(profile, overrides)
    kubeflow = resolved.kubernetes.kubeflow
    with tempfile.TemporaryDirectory(prefix="espalier-") as folder:
        package = Path(folder) / "pipeline.yaml"
        compile_pipeline(package, parameters, resolved.kubernetes, None)
        pipeline_id = _pipeline(api, kubeflow)
        version_id = _version(api, pipeline_id, package, f"{kubeflow.pipeline}")
    return Prepared(
        profile=resolved,
        version={"pipeline_id": pipeline_id, "pipeline_version_id": version_id},
        experiment_id=_experiment(api, kubeflow),
        parameters=parameters,
    )


def _pipeline(api: KubeflowApi, kubeflow: KubeflowConfig) -> str:
    """The pipeline of that name; made without a version where there is none."""
    found = api.get_or_none(f"/pipelines/names/{kubeflow.pipeline}", namespace=kubeflow.namespace)
    if found is None:
        names = {"name": kubeflow.pipeline, "display_name": kubeflow.pipeline}
        found = api.post("/pipelines", names | _namespace(kubeflow))
    return _id(found, "pipeline_id")


def _version(api: KubeflowApi, pipeline_id: str, package: Path, pipeline: str) -> str:
    name = f"{pipeline}-{file_digest(package)[:_DIGEST_CHARS]}"
    for version in api.listed(f"/pipelines/{pipeline_id}/versions", "pipeline_versions"):
        if name in (version.get("name"), version.get("display_name")):
            return _id(version, "pipeline_version_id")
    uploaded = api.upload("/pipelines/upload_version", package, name=name, pipelineid=pipeline_id)
    return _id(uploaded, "pipeline_version_id")


def _experiment(api: KubeflowApi, kubeflow: KubeflowConfig) -> str:
    for found in api.listed("/experiments", "experiments", namespace=kubeflow.namespace):
        if found.get("display_name") == kubeflow.experiment:
            return _id(found, "experiment_id")
    made = api.post("/experiments", {"display_name": kubeflow.experiment} | _namespace(kubeflow))
    return _id(made, "experiment_id")


def _namespace(kubeflow: KubeflowConfig) -> dict[str, str]:
    return {"namespace": kubeflow.namespace} if kubeflow.namespace else {}


def _id(found: dict[str, Any], key: str) -> str:
    value = found.get(key)
    if not isinstance(value, str) or not value:
        raise ClusterError(
            f"the server's answer has no {key}: does it speak v2beta1 of Kubeflow Pipelines?"
        )
    return value

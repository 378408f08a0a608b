"""From a policy directory and its evaluation to a model version: upload first, create after."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from espalier.registry.connection import reaching
from espalier.registry.loading import FILES_NAME, POLICY_FOLDER
from espalier.registry.model import (
    GATE,
    PARENT_RUN,
    PENDING,
    POLICY_DIGEST,
    SUITE_DIGEST,
    ModelVersion,
    RegisteredModel,
    version_folder,
)
from espalier.registry.results import (
    RESULT_FILES,
    TRAINED,
    WARM_START,
    EvaluationResult,
    result_folder,
)
from espalier.registry.tracker import RunHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a version is, apart from when and where it was registered."""

    model_name: str
    policy_digest: str
    suite_digest: str
    data_digest: str
    """Content digest of the accepted tasks and trajectories."""
    code_digest: str


PROFILE_NAME = "profile.json"
"""The settings of the run that made the version, its promotion's among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """What a version is made of."""

    policy: Path
    files: Mapping[str, str]
    """Path -> SHA-256 of every file in `policy`."""
    evaluation: Path
    result: EvaluationResult
    profile_json: str


def find_or_register(target: RunHandle, identity: Identity, payload: Payload) -> ModelVersion:
    """The version of this policy on this suite in this pipeline run; registered if there is none.

    Raises:
        RegistryError: MLflow cannot be reached, or refuses.
    """
    model = RegisteredModel(target.client, target.uri, identity.model_name)
    same = {
        POLICY_DIGEST: identity.policy_digest,
        SUITE_DIGEST: identity.suite_digest,
        PARENT_RUN: _parent(target),
    }
    for version in model.versions():
        if all(version.tags.get(key) == value for key, value in same.items()):
            return version
    return _register(model, target, identity, payload)


def _register(
    model: RegisteredModel, target: RunHandle, identity: Identity, payload: Payload
) -> ModelVersion:
    """Upload, then create: a version whose files are not all there never exists.

    The version and its files belong to the pipeline's run, so that MLflow shows the one on the
    other's page; where the stage runs alone, to the stage's own.
    """
    run_id = _parent(target)
    folder = version_folder(identity.policy_digest)
    with reaching(target.uri, f"upload the policy for {identity.model_name}"):
        _upload(target, folder, identity, payload)
        artifacts = target.client.get_run(run_id).info.artifact_uri
    with reaching(target.uri, f"create a version of {identity.model_name}"):
        _ensure_model(target, identity.model_name)
        created = target.client.create_model_version(
            identity.model_name,
            f"{artifacts}/{folder}/{POLICY_FOLDER}",
            run_id,
            tags=_tags(target, identity, payload.result),
            description=_description(payload.result),
        )
    return model.version(str(created.version))


def _upload(target: RunHandle, folder: str, identity: Identity, payload: Payload) -> None:
    """The policy as it is (safetensors once), its file digests, and the evaluation."""
    run_id = _parent(target)
    target.client.log_artifacts(run_id, str(payload.policy), f"{folder}/{POLICY_FOLDER}")
    with TemporaryDirectory() as scratch:
        listing = json.dumps(dict(payload.files), indent=2)
        for name, text in ((FILES_NAME, listing), (PROFILE_NAME, payload.profile_json)):
            written = Path(scratch) / name
            written.write_text(text, encoding="utf-8")
            target.client.log_artifact(run_id, str(written), folder)
    for name in RESULT_FILES:
        if (payload.evaluation / name).is_file():
            target.client.log_artifact(
                run_id,
                str(payload.evaluation / name),
                f"{folder}/{result_folder(identity.suite_digest)}",
            )


def _tags(target: RunHandle, identity: Identity, result: EvaluationResult) -> dict[str, str]:
    figures = {
        "espalier.em": result.figure(TRAINED, "em"),
        "espalier.em_ci95": result.figure(TRAINED, "ci95"),
        "espalier.questions": result.figure(TRAINED, "n"),
        "espalier.warm_start_em": result.figure(WARM_START, "em"),
        "espalier.gain_em": result.figure("gain", "em"),
        "espalier.gain_ci95": result.figure("gain", "ci95"),
    }
    return {
        POLICY_DIGEST: identity.policy_digest,
        SUITE_DIGEST: identity.suite_digest,
        "espalier.data_digest": identity.data_digest,
        "espalier.code_digest": identity.code_digest,
        PARENT_RUN: _parent(target),
        GATE: PENDING,
        **{key: json.dumps(value) for key, value in figures.items() if value is not None},
    }


def _description(result: EvaluationResult) -> str:
    em, questions = result.figure(TRAINED, "em"), result.figure(TRAINED, "n")
    if not isinstance(em, float):
        return ""
    said = f"EM {100 * em:.1f} % of {questions} held-out questions"
    gain = result.figure("gain", "em")
    return f"{said}, {100 * gain:+.1f} points by training" if isinstance(gain, float) else said


def _parent(target: RunHandle) -> str:
    return target.parent_run_id or target.run_id


def _ensure_model(target: RunHandle, name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        target.client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise

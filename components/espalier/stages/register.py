"""register: registers the trained policy as a model version with the alias `challenger`.

Inputs: trained_policy/ (policy/), evaluation/ (results.json, questions.parquet), accepted/
Output: registered.json (identity of the version), run.json (its number, run and time)

MLFLOW_TRACKING_URI=sqlite:////data/mlflow.db espalier run --profile laptop --out runs/first
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import espalier
from espalier.chain import opened, provenance
from espalier.config import Profile, weights_origin
from espalier.evaluation.lineage import LINEAGE_NAME, lineage_of
from espalier.named_classes import OWN_PACKAGES
from espalier.records import (
    ArtifactError,
    Manifest,
    RegistryError,
    Tracker,
    file_digest,
    json_digest,
    patiently,
    publishing,
)
from espalier.registry.connection import shown
from espalier.registry.model import CHALLENGER, POLICY_FOLDER, ModelVersion, RegisteredModel
from espalier.registry.registration import (
    TRAINED,
    EvaluationResult,
    Identity,
    Payload,
    find_or_register,
    read_result,
)
from espalier.registry.tracker import DatasetUse, RunHandle, log_datasets
from espalier.registry.tracking import mlflow_run, stage_tracking
from espalier.usage import used_since

STAGE = "register"


def run(
    profile: Profile,
    inputs: Mapping[str, Path],
    output_dir: Path,
    tracker: Tracker,
    *,
    external_digests: Mapping[str, str] | None = None,
) -> Manifest:
    """Register the trained policy with its evaluation, once.

    After a kill, the next attempt finds the version that was already made: a policy, a suite and a
    pipeline run identify one version.

    Raises:
        ArtifactError: an input is damaged, or the evaluation is of another policy.
        RegistryError: no MLflow is configured, or it cannot be reached.
    """
    started = time.perf_counter()
    manifests = opened(inputs)
    payload = _payload(profile, inputs, manifests)
    identity = Identity(
        model_name=profile.model_name,
        policy_digest=json_digest(payload.files),
        suite_digest=payload.result.suite_digest,
        data_digest=manifests["accepted"].content,
        code_digest=code_digest(profile),
    )
    with _registering_run(profile, tracker) as target:
        version = patiently(lambda: find_or_register(target, identity, payload))
        model = RegisteredModel(target.client, target.uri, identity.model_name)
        patiently(lambda: model.point(CHALLENGER, version))
        used = _datasets(inputs, manifests, payload.result)
        patiently(lambda: log_datasets(target, used))
    tracker.note(f"registered {version.label} as @{CHALLENGER}")
    origin = provenance("register", profile, manifests, external_digests)
    with publishing(output_dir, origin) as draft:
        _write_json(draft.path / "registered.json", asdict(identity))
        _write_json(draft.path / "run.json", _measured(version, target, started))
    return draft.published


def _datasets(
    inputs: Mapping[str, Path], manifests: Mapping[str, Manifest], result: EvaluationResult
) -> list[DatasetUse]:
    """Datasets that the policy was trained and judged on, as recorded in the artifacts."""
    accepted = manifests["accepted"]
    questions = result.figure(TRAINED, "n")
    rows = {"questions": questions} if isinstance(questions, int) else {}
    source = str(inputs["accepted"].resolve())
    found = [
        DatasetUse("accepted", accepted.content, source, accepted.rows, "training"),
        DatasetUse("held-out suite", result.suite_digest, source, rows, "evaluation"),
    ]
    if knowledge := accepted.inputs.get("knowledge"):
        found.append(DatasetUse("knowledge", knowledge, source, {}, "knowledge"))
    return found


def code_digest(profile: Profile) -> str:
    """Digest over the Python sources of espalier, and of packages that the profile names."""
    root = Path(espalier.__file__).parent.parent
    sources = {
        path.relative_to(root).as_posix(): file_digest(path)
        for package in OWN_PACKAGES
        for path in sorted((root / package).rglob("*.py"))
    }
    return json_digest(sources | profile.code_digests(tuple(Profile.model_fields)))


def _payload(
    profile: Profile, inputs: Mapping[str, Path], manifests: dict[str, Manifest]
) -> Payload:
    trained = manifests["trained_policy"]
    evaluated = manifests["evaluation"].inputs.get("trained_policy", trained.content)
    if evaluated != trained.content:
        raise ArtifactError(
            f"{inputs['evaluation']} evaluated the policy {evaluated[:12]}, but "
            f"{inputs['trained_policy']} is {trained.content[:12]}. "
            "Delete the evaluation and run the same command again."
        )
    prefix = f"{POLICY_FOLDER}/"
    files = {
        name.removeprefix(prefix): digest
        for name, digest in trained.files.items()
        if name.startswith(prefix)
    }
    if not files:
        raise ArtifactError(
            f"{inputs['trained_policy']}: no files below {prefix}, so there is no policy to "
            "register. Delete the directory and run the same command again."
        )
    result = read_result(inputs["evaluation"])
    # not `policy.model`: a local run has replaced it by the champion's directory, a pod has not
    is_champions = profile.policy.start == "champion"
    base = Path("champion") if is_champions else profile.policy.model
    data = manifests["accepted"].content
    lineage = lineage_of(profile, inputs["accepted"], inputs["trained_policy"], data, base)
    return Payload(
        policy=inputs["trained_policy"] / POLICY_FOLDER,
        files=files,
        evaluation=inputs["evaluation"],
        result=result,
        profile_json=profile.model_dump_json(indent=2),
        records={LINEAGE_NAME: lineage.packed()},
        origin=weights_origin(inputs["trained_policy"] / POLICY_FOLDER),
        named_after=profile.named_after,
    )


@contextmanager
def _registering_run(profile: Profile, tracker: Tracker) -> Iterator[RunHandle]:
    """The tracker's own run in MLflow; where it has none, a run that ends with the block.

    Raises:
        RegistryError: no MLflow is configured, or it refuses.
        RegistryAwayError: MLflow cannot be reached.
    """
    if (own := mlflow_run(tracker)) is not None:
        yield own
        return
    with stage_tracking(STAGE, profile) as opened:
        run = mlflow_run(opened)
        if run is None:
            raise RegistryError(
                "register: no MLflow is configured. Set MLFLOW_TRACKING_URI to a server, or to "
                "a local database such as sqlite:////absolute/path/mlflow.db."
            )
        yield run


def _measured(version: ModelVersion, target: RunHandle, started: float) -> dict[str, object]:
    return {
        "name": version.model,
        "version": version.version,
        "model_uri": f"models:/{version.label}",
        "run_id": target.run_id,
        "parent_run_id": target.pipeline_run_id,
        "tracking_uri": shown(target.uri),
        "registered": datetime.now(UTC).isoformat(timespec="seconds"),
        **used_since(started),
    }


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")

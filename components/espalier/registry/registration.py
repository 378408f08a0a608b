"""Register a policy with its evaluation as a model version; read stored evaluations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from espalier.records import RegistryError
from espalier.records.adapter import read_base
from espalier.registry.connection import reaching
from espalier.registry.model import (
    FILES_NAME,
    GATE,
    NAMED_AFTER,
    PARENT_RUN,
    PENDING,
    POLICY_DIGEST,
    POLICY_FOLDER,
    SUITE_DIGEST,
    ModelVersion,
    RegisteredModel,
    version_folder,
)
from espalier.registry.tracker import RunHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Model name and digests that identify a version."""

    model_name: str
    policy_digest: str
    suite_digest: str
    data_digest: str
    """Content digest of the accepted tasks and trajectories."""
    code_digest: str


PROFILE_NAME = "profile.json"
"""File with the profile of the run that made the version; it configures the promotion gate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """Files and figures of a version."""

    policy: Path
    files: Mapping[str, str]
    """Path -> SHA-256 of every file in `policy`."""
    evaluation: Path
    result: EvaluationResult
    profile_json: str
    records: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Further files of the version by name, such as its lineage."""
    origin: Mapping[str, str] = field(default_factory=dict[str, str])
    """`model`, `from` and `licence` of the weights that training began with, if known."""
    named_after: str | None = None
    """`Profile.named_after` of the run."""


def find_or_register(target: RunHandle, identity: Identity, payload: Payload) -> ModelVersion:
    """The version of this policy, suite and pipeline run; registered now if there is none.

    If its run has evaluated other suites since, their scores are added to the version for the gate.

    Raises:
        RegistryError: MLflow cannot be reached, or refuses; or another folder's model has the name.
    """
    model = RegisteredModel(target.client, target.uri, identity.model_name)
    model.expect_named_after(payload.named_after)
    same = {
        POLICY_DIGEST: identity.policy_digest,
        SUITE_DIGEST: identity.suite_digest,
        PARENT_RUN: _parent(target),
    }
    for version in model.versions():
        if all(version.tags.get(key) == value for key, value in same.items()):
            with TemporaryDirectory() as scratch:
                stored = fetch_result(model, version, identity.suite_digest, Path(scratch) / "was")
            if stored is None or suite_digests(stored) != suite_digests(payload.result):
                with reaching(target.uri, f"upload the scores of {version.label}"):
                    _upload(target, version_folder(identity.policy_digest), identity, payload)
            return version
    return _register(model, target, identity, payload)


def _register(
    model: RegisteredModel, target: RunHandle, identity: Identity, payload: Payload
) -> ModelVersion:
    """Upload the files, then create the version, so that no version lacks files.

    Both belong to the pipeline's run, or to the stage's own if it runs alone, which MLflow links.
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
            tags=_tags(target, identity, payload),
            description=_description(payload),
        )
    return model.version(str(created.version))


def _upload(target: RunHandle, folder: str, identity: Identity, payload: Payload) -> None:
    run_id = _parent(target)
    target.client.log_artifacts(run_id, str(payload.policy), f"{folder}/{POLICY_FOLDER}")
    with TemporaryDirectory() as scratch:
        listing = json.dumps(dict(payload.files), indent=2)
        for name, text in ((FILES_NAME, listing), (PROFILE_NAME, payload.profile_json)):
            written = Path(scratch) / name
            written.write_text(text, encoding="utf-8")
            target.client.log_artifact(run_id, str(written), folder)
        for name, content in payload.records.items():
            written = Path(scratch) / name
            written.write_bytes(content)
            target.client.log_artifact(run_id, str(written), folder)
    with TemporaryDirectory() as scratch:
        for digest, scores in suite_scores(payload.result).items():
            written = write_scores(Path(scratch) / digest, scores)
            target.client.log_artifact(run_id, str(written), f"{folder}/{suite_folder(digest)}")
    for name in RESULT_FILES:
        if (payload.evaluation / name).is_file():
            target.client.log_artifact(
                run_id,
                str(payload.evaluation / name),
                f"{folder}/{result_folder(identity.suite_digest)}",
            )


def _tags(target: RunHandle, identity: Identity, payload: Payload) -> dict[str, str]:
    result = payload.result
    figures = {
        "espalier.em": result.figure(TRAINED, "em"),
        "espalier.em_ci95": result.figure(TRAINED, "ci95"),
        "espalier.questions": result.figure(TRAINED, "n"),
        "espalier.warm_start_em": result.figure(WARM_START, "em"),
        "espalier.gain_em": result.figure("gain", "em"),
        "espalier.gain_ci95": result.figure("gain", "ci95"),
    }
    tags = {
        POLICY_DIGEST: identity.policy_digest,
        SUITE_DIGEST: identity.suite_digest,
        "espalier.data_digest": identity.data_digest,
        "espalier.code_digest": identity.code_digest,
        PARENT_RUN: _parent(target),
        GATE: PENDING,
        **{key: json.dumps(value) for key, value in figures.items() if value is not None},
    }
    base = read_base(payload.policy)
    if base is not None:  # there is an adapter beside the merged weights
        tags["espalier.adapter_base"] = base.name
        tags["espalier.adapter_base_digest"] = base.digest
    keys = {"model": "base_model", "from": "base_origin", "licence": "base_licence"}
    for key, value in payload.origin.items():
        if key in keys:
            tags[f"espalier.{keys[key]}"] = value
    if payload.named_after:
        tags[NAMED_AFTER] = payload.named_after
    return tags


def _description(payload: Payload) -> str:
    result = payload.result
    em, questions = result.figure(TRAINED, "em"), result.figure(TRAINED, "n")
    lines: list[str] = []
    if isinstance(em, float):
        line = f"EM {100 * em:.1f} % of {questions} held-out questions"
        gain = result.figure("gain", "em")
        has_gain = isinstance(gain, float)
        lines.append(f"{line}, {100 * gain:+.1f} points by training" if has_gain else line)
    if payload.origin:
        base = payload.origin
        lines.append(f"Trained from {base['model']} ({base['from']}), licence {base['licence']}.")
    return "\n\n".join(lines)


def _parent(target: RunHandle) -> str:
    return target.pipeline_run_id or target.run_id


def _ensure_model(target: RunHandle, name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        target.client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


RESULT_FILES = ("results.json", "questions.parquet", "suite.json")
"""Files of an evaluation that are stored with a version; suite.json is optional."""

TRAINED, WARM_START = "trained", "warm_start"


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """One evaluation: its figures, and a row for each question."""

    directory: Path
    figures: Mapping[str, object]
    """Content of results.json."""
    questions: pd.DataFrame
    """Columns task_id, policy, em and others."""

    @property
    def suite_digest(self) -> str:
        """Digest of the suite; only results with equal digests are comparable."""
        return str(_at(self.figures, "suite", "digest"))

    def figure(self, *path: str) -> object:
        """A figure of `eval`, such as `figure("trained", "em")`; None if missing."""
        return _at(self.figures, "eval", *path)

    def exact(self, policy: str) -> dict[str, bool]:
        """task_id -> whether the answer is an exact match, in the order of the suite.

        Raises:
            RegistryError: the policy has no answers, or two for one question.
        """
        rows = self.questions[self.questions["policy"] == policy]
        answers = {
            str(task): bool(em) for task, em in zip(rows["task_id"], rows["em"], strict=True)
        }
        if not answers or len(answers) < len(rows):
            fault = "several answers to one question" if answers else "no answers"
            raise RegistryError(
                f"the result on suite {self.suite_digest[:12]} has {fault} of the policy {policy}. "
                "Run the evaluation again."
            )
        return answers

    def groups(self, policy: str) -> dict[str, dict[str, list[str]]]:
        """Name of a grouping -> group -> ids of its questions; empty without groups."""
        found: dict[str, dict[str, list[str]]] = {}
        if "groups" not in self.questions:
            return found
        rows = self.questions[self.questions["policy"] == policy]
        for task, groups in zip(rows["task_id"], rows["groups"], strict=True):
            for name, value in json.loads(groups).items():
                found.setdefault(name, {}).setdefault(value, []).append(str(task))
        return found


def require_same_questions(challenger: Mapping[str, bool], baseline: Mapping[str, bool]) -> None:
    """Check that two policies of one suite answered the same questions.

    Raises:
        RegistryError: only one of them answered some question.
    """
    if differing := challenger.keys() ^ baseline.keys():
        raise RegistryError(
            f"two results on the same suite differ in {len(differing)} questions, so one of them "
            "is not complete. Run the evaluation again."
        )


def read_result(directory: Path) -> EvaluationResult:
    """Read results.json and questions.parquet.

    Raises:
        RegistryError: one of them is missing or does not parse.
    """
    try:
        figures = json.loads((directory / "results.json").read_text(encoding="utf-8"))
        questions = pd.read_parquet(directory / "questions.parquet")
        result = EvaluationResult(directory, figures, questions)
        missing = {"task_id", "policy", "em"} - set(questions.columns)
    except (OSError, ValueError) as error:  # ArrowInvalid and JSONDecodeError are ValueErrors
        raise RegistryError(
            f"{directory}: not a readable evaluation ({error}). Run the evaluation again."
        ) from error
    if missing or not _at(figures, "suite", "digest"):
        lacks = f"questions.parquet lacks {sorted(missing)}" if missing else "no suite.digest"
        raise RegistryError(f"{directory}: {lacks}. Run the evaluation again.")
    return result


def result_folder(suite_digest: str) -> str:
    """Folder of a suite's result, relative to the version's."""
    return f"evaluation/{suite_digest[:16]}"


def fetch_result(
    model: RegisteredModel, version: ModelVersion, suite_digest: str, destination: Path
) -> EvaluationResult | None:
    """Download the version's result on a suite into `destination`; None if it has none."""
    folder = result_folder(suite_digest)
    if not model.has_file(version, f"{folder}/results.json"):
        return None
    destination.mkdir(parents=True)
    result = read_result(model.fetch(version, folder, destination))
    if result.suite_digest != suite_digest:
        raise RegistryError(
            f"{version.label}: the result stored for suite {suite_digest[:12]} is on suite "
            f"{result.suite_digest[:12]}. Run the evaluation again."
        )
    return result


def write_answers(
    directory: Path, suite: EvaluationResult, answers: pd.DataFrame
) -> EvaluationResult:
    """Write answers (columns task_id, em, ...) as a result on the suite of another result."""
    directory.mkdir(parents=True)
    questions = answers.assign(policy=TRAINED)
    questions.to_parquet(directory / "questions.parquet", index=False)
    exact = [bool(em) for em in questions["em"]]
    em = sum(exact) / max(1, len(exact))
    figures = {"suite": suite.figures["suite"], "eval": {TRAINED: {"em": em, "n": len(exact)}}}
    (directory / "results.json").write_text(json.dumps(figures, indent=2), encoding="utf-8")
    return read_result(directory)


def store_result(model: RegisteredModel, version: ModelVersion, result: EvaluationResult) -> None:
    """Store a result with a version; results.json is uploaded last and marks it complete."""
    for name in reversed(RESULT_FILES):
        if (result.directory / name).is_file():
            model.store(version, result.directory / name, result_folder(result.suite_digest))


SCORES_NAME = "scores.parquet"
"""File with a version's scores on a suite of [evaluation.suites]: columns policy, task_id, score,
contaminated."""
SUITES_NAME = "suites.parquet"
"""File of an evaluation with its scores on all suites of [evaluation.suites]."""


def suite_folder(suite_digest: str) -> str:
    """Folder of the scores on a suite of the profile, relative to the version's."""
    return f"suites/{suite_digest[:16]}"


def suite_digests(result: EvaluationResult) -> dict[str, str]:
    """Name -> digest of an evaluation's suites besides the held-out one."""
    suites = result.figures.get("suites")
    if not isinstance(suites, Mapping):
        return {}
    return {str(name): str(_at(found, "digest")) for name, found in suites.items()}


def suite_scores(result: EvaluationResult) -> dict[str, pd.DataFrame]:
    """Digest of a suite -> its scores, for each suite of an evaluation.

    Raises:
        RegistryError: their file is missing or does not parse.
    """
    digests = suite_digests(result)
    if not digests:
        return {}
    scores = read_scores(result.directory / SUITES_NAME)
    return {
        digest: pd.DataFrame(scores[scores["suite"] == name]) for name, digest in digests.items()
    }


def read_scores(path: Path) -> pd.DataFrame:
    """Read a table of scores on suites.

    Raises:
        RegistryError: the file is missing, does not parse, or lacks a column.
    """
    try:
        scores = pd.read_parquet(path)
        missing = {"suite", "policy", "task_id", "score", "contaminated"} - set(scores.columns)
    except (OSError, ValueError) as error:
        raise RegistryError(
            f"{path}: not a readable table of scores ({error}). Run the evaluation again."
        ) from error
    if missing:
        raise RegistryError(f"{path}: lacks {sorted(missing)}. Run the evaluation again.")
    return scores


def write_scores(directory: Path, scores: pd.DataFrame) -> Path:
    """Write scores as `SCORES_NAME` and return the file."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / SCORES_NAME
    scores.to_parquet(path, index=False)
    return path


def fetch_scores(
    model: RegisteredModel, version: ModelVersion, suite_digest: str, destination: Path
) -> pd.DataFrame | None:
    """Download the version's scores on a suite; None if it has none."""
    file = f"{suite_folder(suite_digest)}/{SCORES_NAME}"
    if not model.has_file(version, file):
        return None
    destination.mkdir(parents=True, exist_ok=True)
    return read_scores(model.fetch(version, file, destination))


def _at(table: object, *path: str) -> object:
    for key in path:
        if not isinstance(table, Mapping):
            return None
        table = table.get(key)
    return table

"""Held-out results kept with a model version, one folder a question suite."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from espalier.records import RegistryError
from espalier.registry.model import ModelVersion, RegisteredModel

RESULT_FILES = ("results.json", "questions.parquet", "suite.json")
"""What of an evaluation is kept with the version; the last one only where the stage wrote it."""

TRAINED, WARM_START = "trained", "warm_start"


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """What one evaluation found, question by question."""

    directory: Path
    """Where it was read from."""
    figures: Mapping[str, object]
    """results.json, whole."""
    questions: pd.DataFrame
    """task_id, policy, em, and whatever else the evaluation wrote."""

    @property
    def suite_digest(self) -> str:
        """Which questions were asked; only equal digests are comparable."""
        return str(_at(self.figures, "suite", "digest"))

    def figure(self, *path: str) -> object:
        """A figure of `eval`, None where it is not there: `figure("trained", "em")`."""
        return _at(self.figures, "eval", *path)

    def exact(self, policy: str) -> dict[str, bool]:
        """Whether each question's answer is exact, by task_id, in the order of the suite.

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


def require_same_questions(challenger: Mapping[str, bool], baseline: Mapping[str, bool]) -> None:
    """Check that two policies answered the same questions, as the suite's digest says.

    Raises:
        RegistryError: one of them has questions that the other has not.
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
    """Folder of a suite's result below the version's own."""
    return f"evaluation/{suite_digest[:16]}"


def fetch_result(
    model: RegisteredModel, version: ModelVersion, suite_digest: str, destination: Path
) -> EvaluationResult | None:
    """Download the version's result on a suite into `destination`; None where it has none."""
    folder = result_folder(suite_digest)
    if not model.has_file(version, f"{folder}/results.json"):
        return None
    destination.mkdir(parents=True)
    result = read_result(model.fetch(version, folder, destination))
    if result.suite_digest != suite_digest:
        raise RegistryError(
            f"{version.label}: its stored result is on suite {result.suite_digest[:12]}, not on "
            f"{suite_digest[:12]} under which it is filed. Run the evaluation again."
        )
    return result


def write_answers(
    directory: Path, suite: EvaluationResult, answers: pd.DataFrame
) -> EvaluationResult:
    """Write answers (task_id, em, ...) to the questions of another result's suite as a result."""
    directory.mkdir(parents=True)
    questions = answers.assign(policy=TRAINED)
    questions.to_parquet(directory / "questions.parquet", index=False)
    exact = [bool(em) for em in questions["em"]]
    em = sum(exact) / max(1, len(exact))
    figures = {"suite": suite.figures["suite"], "eval": {TRAINED: {"em": em, "n": len(exact)}}}
    (directory / "results.json").write_text(json.dumps(figures, indent=2), encoding="utf-8")
    return read_result(directory)


def store_result(model: RegisteredModel, version: ModelVersion, result: EvaluationResult) -> None:
    """Keep a result with a version; results.json goes last, as the sign that all is there."""
    for name in reversed(RESULT_FILES):
        if (result.directory / name).is_file():
            model.store(version, result.directory / name, result_folder(result.suite_digest))


def _at(table: object, *path: str) -> object:
    for key in path:
        if not isinstance(table, Mapping):
            return None
        table = table.get(key)
    return table

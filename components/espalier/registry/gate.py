"""The promotion gate: on which figures a challenger may become champion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pandas as pd

from espalier.config import RegistryConfig
from espalier.records import RegistryError
from espalier.registry.loading import fetch_policy
from espalier.registry.model import SUITE_DIGEST, ModelVersion, RegisteredModel
from espalier.registry.results import (
    TRAINED,
    WARM_START,
    EvaluationResult,
    fetch_result,
    require_same_questions,
    result_folder,
    store_result,
    write_answers,
)

Answers = Mapping[str, bool]
"""task_id -> whether the answer is right."""
Compare = Callable[[Answers, Answers], tuple[float, float, float]]
"""(challenger, baseline) on the same questions, the challenger's in the order of the suite ->
mean difference, and its interval's two ends."""
JudgeChampion = Callable[[Path, Path], pd.DataFrame]
"""(policy directory, folder with the suite's results.json, questions.parquet and suite.json) ->
one row a question of the suite, with at least task_id and em."""


class Comparison(NamedTuple):
    """A challenger against what it must beat, on the same questions; EM 0-1."""

    baseline: str
    suite_digest: str
    questions: int
    challenger_em: float
    baseline_em: float
    gain: float
    low: float
    high: float

    def __str__(self) -> str:
        """One line with every figure, in percent."""
        return (
            f"EM {self.challenger_em:.1%} against {self.baseline_em:.1%} of {self.baseline} on "
            f"{self.questions} questions (suite {self.suite_digest[:12]}), difference "
            f"{100 * self.gain:+.1f} points [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"
        )


@dataclass(frozen=True, slots=True)
class PromotionGate:
    """The rule that lets a challenger become champion, and what it needs to judge."""

    config: RegistryConfig
    compare: Compare
    judge_champion: JudgeChampion

    def judge(
        self, model: RegisteredModel, challenger: ModelVersion, champion: ModelVersion | None
    ) -> Comparison:
        """Compare with the champion on the challenger's suite, or with its own warm start.

        A champion that was never asked this suite's questions is asked them now, and the result is
        kept with its version.
        """
        with TemporaryDirectory() as scratch:
            result = _own_result(model, challenger, Path(scratch))
            if champion is None:
                name, baseline = "its own warm start", result.exact(WARM_START)
            else:
                name = f"champion {champion.label}"
                baseline = self._champion_answers(model, champion, result, Path(scratch))
            answers = result.exact(TRAINED)
            require_same_questions(answers, baseline)
        gain, low, high = self.compare(answers, baseline)
        return Comparison(
            baseline=name,
            suite_digest=result.suite_digest,
            questions=len(answers),
            challenger_em=_share_right(answers),
            baseline_em=_share_right(baseline),
            gain=float(gain),
            low=float(low),
            high=float(high),
        )

    def objection(self, comparison: Comparison, *, first: bool) -> str | None:
        """Why the comparison does not pass, or None."""
        if comparison.questions < self.config.min_questions:
            return f"at least {self.config.min_questions} questions (registry.min_questions) needed"
        least = 0.0 if first else self.config.min_gain
        if not comparison.low > least:
            name = "0" if first else f"registry.min_gain = {least:g}"
            return f"the interval's lower end must lie above {name}"
        return None

    def _champion_answers(
        self, model: RegisteredModel, champion: ModelVersion, own: EvaluationResult, scratch: Path
    ) -> dict[str, bool]:
        stored = fetch_result(model, champion, own.suite_digest, scratch / "champion")
        if stored is not None:
            return stored.exact(TRAINED)
        policy = fetch_policy(model, champion, scratch / "policy")
        answers = self.judge_champion(policy, own.directory)
        judged = write_answers(scratch / "judged", own, answers)
        require_same_questions(
            own.exact(TRAINED), judged.exact(TRAINED)
        )  # half a result is not kept
        store_result(model, champion, judged)
        return judged.exact(TRAINED)


def _share_right(answers: Answers) -> float:
    return sum(answers.values()) / len(answers)


def _own_result(
    model: RegisteredModel, challenger: ModelVersion, scratch: Path
) -> EvaluationResult:
    digest = challenger.tags.get(SUITE_DIGEST, "")
    result = fetch_result(model, challenger, digest, scratch / "challenger") if digest else None
    if result is None:
        raise RegistryError(
            f"{challenger.label} was registered without an evaluation "
            f"({result_folder(digest)} is not there). Register it through the pipeline, or promote "
            "it with --force REASON."
        )
    return result

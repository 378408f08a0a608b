"""Promotion gate, and the ways to move `@champion`: by the gate, forced with a reason, rollback."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pandas as pd

from espalier.config import RegistryConfig
from espalier.records import GroupChange, RegistryError, group_changes
from espalier.registry.model import (
    CHALLENGER,
    CHAMPION,
    CHAMPION_SINCE,
    FORCED,
    GATE,
    GATE_REASON,
    PASSED,
    PENDING,
    PREVIOUS,
    PREVIOUS_CHAMPION,
    REFUSED,
    SUITE_DIGEST,
    ModelVersion,
    RegisteredModel,
    fetch_policy,
)
from espalier.registry.registration import (
    TRAINED,
    WARM_START,
    EvaluationResult,
    fetch_result,
    fetch_scores,
    require_same_questions,
    result_folder,
    store_result,
    suite_digests,
    suite_folder,
    write_answers,
    write_scores,
)
from espalier.registry.tracking import operator

Answers = Mapping[str, float]
"""task_id -> score of the answer, or whether it is right."""
Compare = Callable[[Answers, Answers], tuple[float, float, float]]
"""(challenger's answers in the order of the suite, baseline's answers to the same questions) ->
mean difference and both ends of its interval."""
EvaluateChampion = Callable[[Path, Path], pd.DataFrame]
"""(policy directory, folder with the suite's results.json, questions.parquet and suite.json) ->
one row per question, with at least task_id and em."""


EvaluateSuite = Callable[[Path, str, str], pd.DataFrame]
"""(policy directory, name of a suite of the challenger's profile, its digest when the challenger
was evaluated) -> one row per task, with at least task_id, score and contaminated. Raises a
RegistryError if the suite's digest has changed since."""


class Contaminated(NamedTuple):
    """Questions of a suite that a version was trained on."""

    tasks: frozenset[str]
    """Ids of these questions."""
    unknown: str = ""
    """Reason why there may be more, in words; empty if all were compared."""


FindContaminated = Callable[[ModelVersion, ModelVersion], Contaminated]
"""(version, version whose held-out suite is used) -> questions of it the first was trained on."""


class SuiteComparison(NamedTuple):
    """Headline scores (0-1) of a challenger and its baseline on a suite of the profile."""

    suite: str
    digest: str
    questions: int
    excluded: int
    challenger: float
    baseline: float
    gain: float
    low: float
    high: float

    def __str__(self) -> str:
        """One line with every figure, in percent."""
        return (
            f"{self.suite}: {self.challenger:.1%} against {self.baseline:.1%} on "
            f"{self.questions} tasks, difference {100 * self.gain:+.1f} points "
            f"[{100 * self.low:+.1f}, {100 * self.high:+.1f}]"
        )


class GateComparison(NamedTuple):
    """EM (0-1) of a challenger and its baseline on the same questions."""

    baseline: str
    suite_digest: str
    questions: int
    challenger_em: float
    baseline_em: float
    gain: float
    low: float
    high: float
    excluded: int = 0
    """Number of questions left out because either was trained on them."""
    unknown: str = ""
    """Gaps in what is known of their training data, in words."""
    suites: tuple[SuiteComparison, ...] = ()
    """Comparisons on the suites of `registry.must_not_fall`."""
    fallen: tuple[GroupChange, ...] = ()
    """Groups of questions whose whole interval lies below 0; a warning, not a refusal."""

    def __str__(self) -> str:
        """One line with every figure, in percent."""
        parts = [
            f"EM {self.challenger_em:.1%} against {self.baseline_em:.1%} of {self.baseline} on "
            f"{self.questions} questions (suite {self.suite_digest[:12]}), difference "
            f"{100 * self.gain:+.1f} points [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"
        ]
        if self.excluded:
            parts.append(f"left out {self.excluded} questions that either was trained on")
        if self.unknown:
            parts.append(f"not known: {self.unknown}")
        if self.fallen:
            parts.append(f"warning: fell in {', '.join(map(str, self.fallen))}")
        return "; ".join([*parts, *map(str, self.suites)])


class Objection(NamedTuple):
    """Why a challenger does not become champion."""

    reason: str
    advice: str
    """What the user can do about it, a sentence."""


_MORE_QUESTIONS = (
    "Hold more questions out (synthesis.heldout_tasks, splits.heldout_share), or give more "
    "documents."
)
_MOST_QUESTIONS = 20_000
"""Held-out questions above which more of them are no advice."""


def _advice(comparison: GateComparison, least: float) -> str:
    """Whether to train further, or to ask more: an interval narrows as the root of their number."""
    above = comparison.gain - least
    half_width = comparison.gain - comparison.low
    needed = comparison.questions * (half_width / above) ** 2 if above > 0 else float("inf")
    if not needed <= _MOST_QUESTIONS:  # or no interval
        return "Train further."
    return (
        f"A gain of {100 * comparison.gain:+.1f} points shows in about {needed:,.0f} "
        f"questions. {_MORE_QUESTIONS} Or train further."
    )


@dataclass(frozen=True, slots=True)
class PromotionGate:
    """Decides whether a challenger becomes champion."""

    config: RegistryConfig
    compare: Compare
    evaluate_champion: EvaluateChampion
    evaluate_suite: EvaluateSuite | None = None
    contaminated: FindContaminated | None = None
    """Finds questions to leave out; None compares on all."""

    def judge(
        self, model: RegisteredModel, challenger: ModelVersion, champion: ModelVersion | None
    ) -> GateComparison:
        """Compare the challenger with the champion, or with its own warm start if there is none.

        Both are compared on the challenger's suite. A champion without a result on it is evaluated
        now, and the result is stored with its version.
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
            suites = tuple(
                self._on_suite(model, challenger, champion, result, name)
                for name in self.config.must_not_fall
            )
        versions = [challenger] if champion is None else [challenger, champion]
        found = [self._contaminated(version, challenger) for version in versions]
        seen = frozenset[str]().union(*(one.tasks for one in found)) & answers.keys()
        self._require_known(challenger, seen, [one.unknown for one in found if one.unknown])
        own = {task: right for task, right in answers.items() if task not in seen}
        others = {task: baseline[task] for task in own}
        if not own:
            raise RegistryError(
                f"{challenger.label} is not promoted: one of the two versions was trained on every "
                f"one of its {len(answers)} held-out questions. Judge both on another suite."
            )
        gain, low, high = self.compare(own, others)
        return GateComparison(
            baseline=name,
            suite_digest=result.suite_digest,
            questions=len(own),
            challenger_em=_share_right(own),
            baseline_em=_share_right(others),
            gain=float(gain),
            low=float(low),
            high=float(high),
            excluded=len(seen),
            unknown="; ".join(dict.fromkeys(one.unknown for one in found if one.unknown)),
            suites=suites,
            fallen=self._fallen(result, own, others),
        )

    def _fallen(
        self, result: EvaluationResult, own: Answers, others: Answers
    ) -> tuple[GroupChange, ...]:
        """Groups of questions in which the challenger is worse than its baseline."""
        gain: dict[str, Any] = {}
        for name, groups in result.groups(TRAINED).items():
            for group, tasks in groups.items():
                compared = [task for task in tasks if task in own]
                if not compared:
                    continue
                mean, low, high = self.compare(
                    {task: own[task] for task in compared},
                    {task: others[task] for task in compared},
                )
                change = {"em": float(mean), "ci95": [float(low), float(high)], "n": len(compared)}
                gain.setdefault(f"by_{name}", {})[group] = change
        return tuple(one for one in group_changes(gain).values() if one.has_fallen)

    def _contaminated(self, version: ModelVersion, owner: ModelVersion) -> Contaminated:
        return self.contaminated(version, owner) if self.contaminated else Contaminated(frozenset())

    def _require_known(
        self, challenger: ModelVersion, seen: Collection[str], unknown: Sequence[str]
    ) -> None:
        if seen and self.config.contaminated == "refuse":
            raise RegistryError(
                f"{challenger.label} is not promoted: one of the two versions was trained on "
                f"{len(seen)} of its held-out questions. Set "
                'registry.contaminated = "exclude" to compare on the others, or judge both on '
                "another suite."
            )
        if unknown and self.config.unknown_training == "refuse":
            raise RegistryError(
                f"{challenger.label} is not promoted: not known: {'; '.join(unknown)}. Set "
                'registry.unknown_training = "allow", or promote it with --force REASON.'
            )

    def _on_suite(
        self,
        model: RegisteredModel,
        challenger: ModelVersion,
        champion: ModelVersion | None,
        result: EvaluationResult,
        suite: str,
    ) -> SuiteComparison:
        """Compare on a suite of the profile; a champion without a result on it is evaluated."""
        digest = suite_digests(result).get(suite)
        with TemporaryDirectory() as scratch:
            own = fetch_scores(model, challenger, digest or "", Path(scratch) / "own")
            if digest is None or own is None:
                raise RegistryError(
                    f"{challenger.label} has no result on the suite {suite}, which "
                    "registry.must_not_fall names. Run the evaluation again."
                )
            challenging = _of_policy(own, TRAINED)
            if champion is None:
                baseline = _of_policy(own, WARM_START)
            else:
                baseline = self._champion_scores(
                    model, champion, challenging, (suite, digest), Path(scratch)
                )
        if challenging.keys() != baseline.keys():
            raise RegistryError(
                f"two results on the suite {suite} are about different tasks, so one of them is "
                "not complete. Run the evaluation again."
            )
        clean = [
            task
            for task, own_score in challenging.items()
            if not (own_score.contaminated or baseline[task].contaminated)
        ]
        excluded = len(challenging) - len(clean)
        if not clean or (self.config.contaminated == "refuse" and excluded):
            raise RegistryError(
                f"{challenger.label} is not promoted: one of the two versions was trained on "
                f"{excluded} of {len(challenging)} tasks of the suite {suite}. Name another suite "
                "in registry.must_not_fall."
            )
        first = {task: challenging[task].score for task in clean}
        second = {task: baseline[task].score for task in clean}
        gain, low, high = self.compare(first, second)
        return SuiteComparison(
            suite=suite,
            digest=digest,
            questions=len(first),
            excluded=excluded,
            challenger=_share_right(first),
            baseline=_share_right(second),
            gain=float(gain),
            low=float(low),
            high=float(high),
        )

    def _champion_scores(
        self,
        model: RegisteredModel,
        champion: ModelVersion,
        challenging: Mapping[str, _TaskScore],
        named: tuple[str, str],
        scratch: Path,
    ) -> dict[str, _TaskScore]:
        suite, digest = named
        stored = fetch_scores(model, champion, digest, scratch / "champion")
        if stored is not None:
            return _of_policy(stored, TRAINED)
        if self.evaluate_suite is None:
            raise RegistryError(
                f"{champion.label} has no result on the suite {suite}, and cannot be evaluated here"
            )
        policy = fetch_policy(model, champion, scratch / "policy")
        found = self.evaluate_suite(policy, suite, digest).assign(suite=suite, policy=TRAINED)
        scores = _of_policy(found, TRAINED)
        if scores.keys() == challenging.keys():  # an incomplete result must not be kept
            model.store(champion, write_scores(scratch / "new", found), suite_folder(digest))
        return scores

    def objection(self, comparison: GateComparison, *, first: bool) -> Objection | None:
        """Reason why the comparison does not pass, or None if it passes.

        Args:
            comparison: the figures.
            first: whether there is no champion yet, so that any gain over the warm start counts.
        """
        least = 0.0 if first else self.config.min_gain
        if comparison.questions < self.config.min_questions:
            return Objection(
                f"at least {self.config.min_questions} questions (registry.min_questions) needed",
                _MORE_QUESTIONS,
            )
        if not comparison.low > least:
            name = "0" if first else f"registry.min_gain = {least:g}"
            return Objection(
                f"the interval's lower end must lie above {name}", _advice(comparison, least)
            )
        for suite in comparison.suites:
            if not suite.low > -self.config.max_fall:
                return Objection(
                    f"on {suite.suite}, which registry.must_not_fall names, the interval's lower "
                    f"end must lie above -{self.config.max_fall:g} (registry.max_fall)",
                    "Train on tasks of that suite too.",
                )
        return None

    def _champion_answers(
        self, model: RegisteredModel, champion: ModelVersion, own: EvaluationResult, scratch: Path
    ) -> dict[str, bool]:
        stored = fetch_result(model, champion, own.suite_digest, scratch / "champion")
        if stored is not None:
            return stored.exact(TRAINED)
        policy = fetch_policy(model, champion, scratch / "policy")
        answers = self.evaluate_champion(policy, own.directory)
        judged = write_answers(scratch / "judged", own, answers)
        require_same_questions(
            own.exact(TRAINED), judged.exact(TRAINED)
        )  # before storing: an incomplete result must not be kept
        store_result(model, champion, judged)
        return judged.exact(TRAINED)


class _TaskScore(NamedTuple):
    score: float
    contaminated: str


def _of_policy(scores: pd.DataFrame, policy: str) -> dict[str, _TaskScore]:
    """task_id -> score of one policy, in the order of the table.

    Raises:
        RegistryError: the policy has no score, or two for one task.
    """
    columns = (scores[name] for name in ("policy", "task_id", "score", "contaminated"))
    rows = [row for row in zip(*columns, strict=True) if row[0] == policy]
    found = {str(task): _TaskScore(float(score), str(seen or "")) for _, task, score, seen in rows}
    if not found or len(found) < len(rows):
        raise RegistryError(
            f"the scores on a suite have no row of the policy {policy}, or two for one task. Run "
            "the evaluation again."
        )
    return found


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
            f"({result_folder(digest)} is missing). Register it through the pipeline, or promote "
            "it with --force REASON."
        )
    return result


class Promotion(NamedTuple):
    """Outcome of a promotion or a rollback."""

    model: str
    version: str
    previous: str | None
    gate: str
    comparison: GateComparison | None


def promote(
    model: RegisteredModel,
    gate: PromotionGate,
    *,
    version: str | None = None,
    force_reason: str | None = None,
) -> Promotion:
    """Make a version (default: the challenger) champion if it passes the gate or is forced.

    Raises:
        RegistryError: the gate refuses (the message has the figures), there is no such version, or
            it is already the champion. No alias is moved.
    """
    challenger = model.version(version or CHALLENGER)
    holder = model.find(CHAMPION)
    if holder and holder.version == challenger.version and holder.may_lead:
        raise RegistryError(f"{challenger.label} is already the champion.")
    champion = _current_champion(model, holder, challenger)
    if force_reason is not None:
        comparison, record = None, _forced(force_reason)
    else:
        comparison = gate.judge(model, challenger, champion)
        objection = gate.objection(comparison, first=champion is None)
        if objection:
            _refuse(model, challenger, comparison, objection)
        record = {GATE: PASSED, GATE_REASON: str(comparison), **_figures(comparison)}

    # the gate's verdict is recorded before the alias moves: no champion ever lacks a recorded pass
    before = {PREVIOUS_CHAMPION: champion.version} if champion else {}
    model.tag(challenger, {**record, **before})
    if champion:
        model.point(PREVIOUS, champion)
    model.point(CHAMPION, challenger)
    model.tag(challenger, {CHAMPION_SINCE: _now()})
    previous = champion.version if champion else None
    return Promotion(model.name, challenger.version, previous, record[GATE], comparison)


def rollback(model: RegisteredModel) -> Promotion:
    """Move `@champion` back to the previous champion.

    Raises:
        RegistryError: there is no champion, no previous one, or the previous one neither passed the
            gate nor was forced with a reason.
    """
    holder = model.find(CHAMPION)
    if holder is None:
        raise RegistryError(f"{model.name}: there is no champion to roll back.")
    if holder.may_lead:
        number = holder.tags.get(PREVIOUS_CHAMPION)
        target = model.find(number) if number else None
    else:  # the alias was moved by hand, bypassing the gate: return to the last promoted version
        target = _current_champion(model, holder, holder)
    if target is None:
        raise RegistryError(
            f"{holder.label} has no previous champion to return to. Promote another version with "
            "--version N."
        )
    if not target.may_lead:
        raise RegistryError(
            f"{target.label} was champion before {holder.label}, but neither passed the gate nor "
            f"was forced with a reason (gate: {target.gate}). Promote it: --version "
            f"{target.version}, with --force REASON if need be."
        )
    before = target.tags.get(PREVIOUS_CHAMPION)
    model.point(PREVIOUS, model.find(before) if before else None)
    model.point(CHAMPION, target)
    model.tag(target, {CHAMPION_SINCE: _now()})
    return Promotion(model.name, target.version, holder.version, target.gate, None)


def _current_champion(
    model: RegisteredModel, holder: ModelVersion | None, other_than: ModelVersion
) -> ModelVersion | None:
    """Champion to compare with: the alias's version, or else the last promoted one."""
    if holder and holder.may_lead and holder.version != other_than.version:
        return holder
    led = [
        version
        for version in model.versions()
        if version.may_lead
        and version.version != other_than.version
        and CHAMPION_SINCE in version.tags
    ]
    return max(led, key=lambda version: version.tags[CHAMPION_SINCE], default=None)


def _refuse(
    model: RegisteredModel,
    challenger: ModelVersion,
    comparison: GateComparison,
    objection: Objection,
) -> None:
    if challenger.gate in (PENDING, REFUSED):  # keep an earlier pass: rollback needs it
        record = {GATE: REFUSED, GATE_REASON: f"{objection.reason}: {comparison}"}
        model.tag(challenger, {**record, **_figures(comparison)})
    raise RegistryError(
        f"{challenger.label} is not promoted: {objection.reason}; found {comparison}. No alias was "
        f"moved. {objection.advice} `--force REASON` promotes it all the same."
    )


def _forced(reason: str) -> dict[str, str]:
    if not reason.strip():
        raise RegistryError("a forced promotion needs a reason: --force 'why the gate is wrong'")
    return {
        GATE: FORCED,
        GATE_REASON: reason.strip(),
        "espalier.forced_by": operator(),
        "espalier.forced_at": _now(),
    }


def _figures(comparison: GateComparison) -> dict[str, str]:
    figures = comparison._asdict() | {"fallen": ", ".join(map(str, comparison.fallen))}
    del figures["suites"]
    tags = {f"espalier.gate.{key}": f"{value}" for key, value in figures.items() if value != ""}
    return tags | {f"espalier.gate.suite.{one.suite}": f"{one}" for one in comparison.suites}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")

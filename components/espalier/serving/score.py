"""The served score: what two versions answered to the same questions, and whether one falls short.

Both are asked at their own addresses at about the same time, and a question counts only where the
former version answered it: a network or a registry that is away is nobody's fault, and a question
that the former version alone cannot answer holds nobody up (`asking.py` sets it aside). Pure: no
clock, no network.

    error      no HTTP 200 in time
    invalid    an answer that is none: no choice, no token or more than asked for, no reason why it
               ended
    latency    seconds from the request to the end of the answer; p99 by nearest rank over the last
               10,000 answers
    right      exact match with an accepted answer (SQuAD's normalisation); questions with accepted
               answers only, each once at a step, by the first answer to it
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from espalier.config import CanaryConfig

MOST_LATENCIES = 10_000
"""Answers of a step whose latency is kept, the last ones: a step may take days."""


class Outcome(enum.Enum):
    """What became of a question."""

    ANSWERED = "answered"
    INVALID = "invalid"
    ERROR = "error"


class Served(NamedTuple):
    """A version's answer to a question."""

    outcome: Outcome
    latency_s: float
    right: bool | None = None
    """None where the question has no accepted answers."""
    told: str = ""
    """Of an error: what came in the place of an answer."""


class AnswerPair(NamedTuple):
    """What both versions answered to a question."""

    question: int
    """Its place in the list of questions."""
    former: Served
    canary: Served


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedScore:
    """Figures of one step of a canary."""

    requests: int
    """Questions that the former version answered, well or not."""
    errors: int
    """Of the canary."""
    invalid: int
    """Of the canary."""
    former_invalid: int
    p99_s: float
    former_p99_s: float
    graded: int
    """Questions with accepted answers that both were asked."""
    right: int
    """Of those, by the canary."""
    former_right: int
    lost: int
    """Right in the former version and wrong in the canary."""
    won: int
    """The other way round."""
    last_error: str = ""
    former_errors: int = 0
    """Questions that the former version left without an answer; they count for nobody."""
    last_former_error: str = ""

    @classmethod
    def of(cls, pairs: Iterable[AnswerPair]) -> ServedScore:
        """Sum up answers."""
        answers = StepAnswers()
        answers.add(pairs)
        return answers.score

    @property
    def p_value(self) -> float:
        """Of the exact one-sided McNemar test (McNemar 1947): how likely so many were lost by luck.

        Among the questions on which the two differ, each is lost with probability 1/2 under the
        hypothesis that both are equally often right.
        """
        return chance_of_losing(self.lost, self.won)

    def __str__(self) -> str:
        """One line with every figure."""
        exact = (
            f", exact match {self.right} against {self.former_right} of {self.graded} "
            f"(lost {self.lost}, won {self.won}, p={self.p_value:.4f})"
            if self.graded
            else ""
        )
        left = f", {self.former_errors} left by the former version" if self.former_errors else ""
        return (
            f"{self.requests} questions, {self.errors} errors, {self.invalid} invalid answers "
            f"against {self.former_invalid}, p99 {self.p99_s:.3f} s against "
            f"{self.former_p99_s:.3f} s{exact}{left}"
        )


class _Answers:
    """What one version answered."""

    def __init__(self) -> None:
        self.errors = 0
        self.invalid = 0
        self.last_error = ""
        self.latencies_s: deque[float] = deque(maxlen=MOST_LATENCIES)

    def add(self, served: Served) -> None:
        if served.outcome is Outcome.ERROR:
            self.errors += 1
            self.last_error = served.told
            return
        self.invalid += served.outcome is Outcome.INVALID
        self.latencies_s.append(served.latency_s)


class StepAnswers:
    """Answers of one step, summed up as they come: memory does not grow with their number."""

    def __init__(self) -> None:
        self._requests = 0
        self._former, self._canary = _Answers(), _Answers()
        self._verdicts: dict[int, tuple[bool, bool]] = {}
        """Graded question -> whether the former version's first answer was right, the canary's."""

    def add(self, pairs: Iterable[AnswerPair]) -> None:
        """Add what both answered."""
        for pair in pairs:
            self._former.add(pair.former)
            if pair.former.outcome is Outcome.ERROR:
                continue
            self._requests += 1
            self._canary.add(pair.canary)
            if pair.former.right is not None:
                verdict = (pair.former.right, bool(pair.canary.right))
                self._verdicts.setdefault(pair.question, verdict)

    @property
    def score(self) -> ServedScore:
        """Figures of what was added so far."""
        former, canary, verdicts = self._former, self._canary, list(self._verdicts.values())
        return ServedScore(
            requests=self._requests,
            errors=canary.errors,
            invalid=canary.invalid,
            former_invalid=former.invalid,
            p99_s=percentile_99(canary.latencies_s),
            former_p99_s=percentile_99(former.latencies_s),
            graded=len(verdicts),
            right=sum(right for _, right in verdicts),
            former_right=sum(right for right, _ in verdicts),
            lost=verdicts.count((True, False)),
            won=verdicts.count((False, True)),
            last_error=canary.last_error,
            former_errors=former.errors,
            last_former_error=former.last_error,
        )


def percentile_99(values: Collection[float]) -> float:
    """The 99th percentile by nearest rank; with fewer than 100 values the largest, 0 of none."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1] if values else 0.0


def chance_of_losing(lost: int, won: int) -> float:
    """P(X >= lost) for X binomial over lost + won with 1/2; 1 where nothing was lost."""
    differing = lost + won
    ways = sum(math.comb(differing, count) for count in range(lost, differing + 1))
    return ways / 2**differing


def shortfall(score: ServedScore, config: CanaryConfig) -> str | None:
    """Why a version goes back; None where nothing speaks against it so far.

    Errors count as soon as they are too many for `min_requests`; the others are judged once so many
    were asked, and exact match once no answer is missing (`missing_answers`), each step at alpha
    divided by their number, so that all steps together hold it.
    """
    asked = max(score.requests, config.min_requests)
    if score.errors > config.max_error_share * asked:
        return (
            f"{score.errors} of {score.requests} questions got no answer from it, above "
            f"serving.canary.max_error_share={config.max_error_share:g} ({score.last_error})"
        )
    if score.requests < config.min_requests:
        return None
    more_invalid = (score.invalid - score.former_invalid) / score.requests
    if more_invalid > config.max_invalid_share:
        return (
            f"{score.invalid} of {score.requests} answers were none, {score.former_invalid} of the "
            f"former version's: above serving.canary.max_invalid_share="
            f"{config.max_invalid_share:g}"
        )
    longest_s = config.max_latency_ratio * score.former_p99_s + config.latency_slack_s
    if score.p99_s > longest_s:
        return (
            f"p99 of {score.p99_s:.3f} s is above the {longest_s:.3f} s that "
            f"serving.canary.max_latency_ratio={config.max_latency_ratio:g} and latency_slack_s="
            f"{config.latency_slack_s:g} allow beside {score.former_p99_s:.3f} s"
        )
    return None


def exact_match_shortfall(score: ServedScore, config: CanaryConfig) -> str | None:
    """Why a version goes back for its exact match, at the end of a step."""
    level = config.alpha / max(len(config.steps), 1)
    if score.p_value >= level:
        return None
    return (
        f"exact match {score.right} against {score.former_right} of {score.graded} questions: "
        f"{score.lost} lost, {score.won} won, p={score.p_value:.2g} below {level:.2g} "
        f"(serving.canary.alpha={config.alpha:g} over {len(config.steps)} steps)"
    )


def missing_answers(score: ServedScore, config: CanaryConfig, *, graded: int) -> str | None:
    """What a step cannot be judged without: `min_requests`, and every graded question that counts.

    Returns:
        What is missing, for people; None where nothing is.
    """
    left = (
        f", and left {score.former_errors} without an answer ({score.last_former_error})"
        if score.former_errors
        else ""
    )
    if score.requests < config.min_requests:
        return (
            f"the former version answered {score.requests} of the "
            f"serving.canary.min_requests={config.min_requests} questions{left}"
        )
    if score.graded < graded:
        return (
            f"the former version answered {score.graded} of the {graded} questions with accepted "
            f"answers{left}"
        )
    return None

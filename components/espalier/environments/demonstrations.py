"""Teacher trajectories, mixed by kind of question, and the reasons to reject an attempt.

WebShaper keeps attempts that are right and neither hallucinate nor repeat themselves (Tao et al.
2025, arXiv:2507.15061, sec. 4.3). A right answer that no observation showed is a guess, and a
policy trained on guesses learns to hallucinate.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from espalier.environments.funnel import Funnel, apportion
from espalier.records import Progress, Task
from espalier.records.folding import folded_name, is_named_in
from espalier.records.trajectory import FinishReason, Trajectory
from espalier.rewards.answers import exact_match

WRONG = "wrong_answer"
UNANSWERED = "unanswered"
UNKNOWN_TOOL = "hallucinated_tool"
NEVER_READ = "hallucinated_observation"
REPEATED = "repetition"


@dataclass(frozen=True, slots=True)
class Rejected:
    """The reason why a task has no demonstration."""

    reason: str


_MAX_SAME_CALLS = 1
"""Limit for equal calls; the documents do not change, so a repeated call shows nothing new."""


def reason_against(trajectory: Trajectory, task: Task) -> str | None:
    """The first reason to reject an attempt at `task`; None if it may be trained on."""
    if trajectory.finish_reason is not FinishReason.ANSWERED or not trajectory.answer:
        return UNANSWERED
    if not exact_match(trajectory.answer, task.verifier.gold):
        return WRONG

    made = [
        (one.call.name, *(folded_name(str(value)) for value in one.call.arguments.values()))
        for one in trajectory.tool_results
    ]
    if any(made.count(call) > _MAX_SAME_CALLS for call in made):
        return REPEATED

    # all tool messages must be recorded results, and one of them must show the answer
    results = [result.content for result in trajectory.tool_results]
    observed = [message.content for message in trajectory.messages if message.role == "tool"]
    if any(text not in results for text in observed):
        return NEVER_READ
    was_read = any(is_named_in(trajectory.answer, text) for text in observed)
    return None if was_read else NEVER_READ


class HasTask(Protocol):
    """A question to demonstrate: a task, and whatever else its teacher needs."""

    @property
    def task(self) -> Task:
        """The task."""
        ...


Q = TypeVar("Q", bound=HasTask)
Demonstrate = Callable[[Q, str], Trajectory | Rejected]
"""A function from a question and a kind of detour ("" for none) to a trajectory."""


class Demonstrations(Generic[Q]):
    """Draws training questions by stratum until each stratum has its share of trajectories."""

    def __init__(
        self,
        demonstrate: Demonstrate[Q],
        detours: DetourSchedule,
        stratum_of: Callable[[Task], str],
        seed: int,
        funnel: Funnel,
    ) -> None:
        """Create the collection of one run.

        Args:
            demonstrate: the family's teacher.
            detours: decides when the teacher makes a mistake, and which kind.
            stratum_of: a task's stratum, for instance its kind of question.
            seed: seed of the run.
            funnel: counts kept and rejected attempts.
        """
        self._demonstrate = demonstrate
        self._stratum_of = stratum_of
        self._rng = random.Random(f"{seed}/demonstrations")
        self._funnel = funnel
        self._detours = detours

    def collect(
        self,
        train: Sequence[Q],
        weights: Mapping[str, float],
        count: int,
        progress: Progress,
    ) -> list[Trajectory]:
        """Up to `count` trajectories, at most one per question, each stratum by its weight.

        The share of a stratum without training questions goes to the others.
        """
        by_stratum: dict[str, list[Q]] = defaultdict(list)
        for question in train:
            by_stratum[self._stratum_of(question.task)].append(question)
        streams = {
            stratum: self._stream(by_stratum[stratum])
            for stratum in sorted(weights)
            if stratum in by_stratum
        }
        kept: list[Trajectory] = []
        while streams and len(kept) < count:
            shares = apportion({s: weights[s] for s in streams}, count - len(kept))
            for stratum, share in shares.items():
                drawn = [t for _, t in zip(range(share), streams[stratum], strict=False)]
                progress.advance(len(drawn))
                kept.extend(drawn)
                if len(drawn) < share:
                    del streams[stratum]
                    self._funnel.count("teacher.exhausted", stratum)
        self._rng.shuffle(kept)
        return kept

    def _stream(self, questions: list[Q]) -> Iterator[Trajectory]:
        """Trajectories of the questions in random order; rejected ones are counted."""
        shuffled = self._rng.sample(questions, len(questions))
        for question in shuffled:
            outcome = self._demonstrate(question, self._detours.due())
            if isinstance(outcome, Rejected):
                self._funnel.count("teacher.rejected", outcome.reason)
                continue
            self._detours.taken(outcome.detour)
            self._funnel.count("teacher.kept", self._stratum_of(question.task))
            self._funnel.count("teacher.detours", outcome.detour or "none")
            yield outcome


def tempered_shares(strata: Iterable[str], temperature: float) -> dict[str, float]:
    """Weights of strata: their frequencies to the power of 1 / `temperature`.

    A temperature of 1 keeps the mixture of `strata`; a higher one gives rare strata more weight, as
    for rare languages in multilingual training (Arivazhagan et al. 2019, arXiv:1907.05019, sec.
    4.1).
    """
    return {s: count ** (1 / temperature) for s, count in Counter(strata).items()}


def demonstrable(
    questions: Sequence[Q], fact_of: Callable[[Task], str], share: float, seed: int
) -> list[Q]:
    """The questions that may be demonstrated: those about a random share of the facts.

    All wordings of a fact are on the same side, so that the warm start teaches no fact that
    reinforcement learning asks for.
    """
    facts = sorted({fact_of(question.task) for question in questions})
    count = max(1, round(share * len(facts)))
    chosen = set(random.Random(f"{seed}/demonstrable").sample(facts, min(count, len(facts))))
    return [question for question in questions if fact_of(question.task) in chosen]


class DetourSchedule:
    """Requests a detour whenever fewer than `share` of the kept trajectories have one."""

    def __init__(self, share: float, kinds: Sequence[str]) -> None:
        self._share = share if kinds else 0.0
        self._kinds = kinds
        self._kept = 0
        self._taken: Counter[str] = Counter()

    def due(self) -> str:
        """The least frequent kind of detour so far; "" if no detour is due."""
        if self._taken.total() >= self._share * (self._kept + 1):
            return ""
        return min(self._kinds, key=lambda kind: self._taken[kind])

    def taken(self, detour: str) -> None:
        """Record the detour of a kept trajectory; "" if it took none."""
        self._kept += 1
        if detour:
            self._taken[detour] += 1

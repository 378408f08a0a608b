"""Teacher trajectories in the mix of the held-out questions."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from espalier.artifacts import Progress
from espalier.config import SynthesisConfig
from espalier.rollout.trajectory import Trajectory
from espalier.synthesis.funnel import Funnel
from espalier.synthesis.quotas import apportion
from espalier.synthesis.teacher import Rejected
from espalier.tasks import Task


class Asked(Protocol):
    """What is drawn: a task, and whatever its teacher needs beside it."""

    @property
    def task(self) -> Task:
        """What is asked."""
        ...


Q = TypeVar("Q", bound=Asked)
Demonstrate = Callable[[Q, str], Trajectory | Rejected]
"""Question and kind of detour (empty for none) to a trajectory."""


class Demonstrations(Generic[Q]):
    """Draws training questions stratum by stratum until each has its share of trajectories."""

    def __init__(
        self,
        demonstrate: Demonstrate[Q],
        config: SynthesisConfig,
        detour_kinds: Sequence[str],
        seed: int,
        funnel: Funnel,
    ) -> None:
        self._demonstrate = demonstrate
        self._rng = random.Random(f"{seed}/demonstrations")
        self._funnel = funnel
        self._detours = _DetourSchedule(config.detour_share, detour_kinds)

    def collect(
        self,
        train: Sequence[Q],
        heldout: Sequence[Q],
        count: int,
        progress: Progress,
    ) -> list[Trajectory]:
        """Up to `count` trajectories, one a question, hops and families mixed as in `heldout`.

        A stratum that training lacks hands its share on to the others.
        """
        by_stratum: dict[str, list[Q]] = defaultdict(list)
        for question in train:
            by_stratum[stratum_of(question)].append(question)
        weights = Counter(stratum_of(question) for question in heldout)
        streams = {
            stratum: self._stream(by_stratum[stratum])
            for stratum in sorted(weights)
            if stratum in by_stratum
        }
        kept: list[Trajectory] = []
        while streams and len(kept) < count:
            shares = apportion({s: float(weights[s]) for s in streams}, count - len(kept))
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
        """Trajectories of the questions in random order, refused ones counted and left out."""
        shuffled = self._rng.sample(questions, len(questions))
        for question in shuffled:
            outcome = self._demonstrate(question, self._detours.due())
            if isinstance(outcome, Rejected):
                self._funnel.count("teacher.rejected", outcome.reason)
                continue
            self._detours.taken(outcome.detour)
            self._funnel.count("teacher.kept", stratum_of(question))
            self._funnel.count("teacher.detours", outcome.detour or "none")
            yield outcome


def stratum_of(question: Asked) -> str:
    """Family and hops: what the mix of demonstrations is measured by."""
    metadata = question.task.metadata
    return f"{metadata.family}-{metadata.hops}"


class _DetourSchedule:
    """Asks for a detour whenever fewer than the wished share of the kept ones has taken one."""

    def __init__(self, share: float, kinds: Sequence[str]) -> None:
        self._share = share
        self._kinds = kinds
        self._kept = 0
        self._taken: Counter[str] = Counter()

    def due(self) -> str:
        """The kind that was taken least often, or empty where none is due."""
        if self._taken.total() >= self._share * (self._kept + 1):
            return ""
        return min(self._kinds, key=lambda kind: self._taken[kind])

    def taken(self, detour: str) -> None:
        """Note the detour of a kept trajectory; empty where it took none."""
        self._kept += 1
        if detour:
            self._taken[detour] += 1

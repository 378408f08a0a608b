"""Teacher trajectories in the mix of the held-out questions."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from espalier.records import Progress, Task
from espalier.records.trajectory import Trajectory
from espalier.synthesis.funnel import Funnel
from espalier.synthesis.quotas import apportion
from espalier.synthesis.rejection import Rejected


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
        detours: DetourSchedule,
        stratum_of: Callable[[Task], str],
        seed: int,
        funnel: Funnel,
    ) -> None:
        """Set up.

        Args:
            demonstrate: the family's teacher.
            detours: how often it is to make a mistake, and of which kind.
            stratum_of: what the mix is measured by.
            seed: of the run.
            funnel: counts what is kept, and why the rest is not.
        """
        self._demonstrate = demonstrate
        self._stratum_of = stratum_of
        self._rng = random.Random(f"{seed}/demonstrations")
        self._funnel = funnel
        self._detours = detours

    def collect(
        self,
        train: Sequence[Q],
        heldout: Sequence[Q],
        count: int,
        progress: Progress,
    ) -> list[Trajectory]:
        """Up to `count` trajectories, one a question, mixed as `heldout` is.

        A stratum that training lacks hands its share on to the others.
        """
        by_stratum: dict[str, list[Q]] = defaultdict(list)
        for question in train:
            by_stratum[self._stratum_of(question.task)].append(question)
        weights = Counter(self._stratum_of(question.task) for question in heldout)
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
            self._funnel.count("teacher.kept", self._stratum_of(question.task))
            self._funnel.count("teacher.detours", outcome.detour or "none")
            yield outcome


class DetourSchedule:
    """Asks for a detour whenever fewer than the wished share of the kept ones has taken one."""

    def __init__(self, share: float, kinds: Sequence[str]) -> None:
        self._share = share if kinds else 0.0
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

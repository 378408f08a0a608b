"""The pool of training tasks: estimated pass rates, and which tasks are worth sampling now."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from espalier.config import CurriculumConfig
from espalier.curriculum.drawing import (
    Band,
    Choose,
    by_prediction,
    from_band,
    from_frontier,
    over_patterns,
    uniform,
)
from espalier.curriculum.learnability import LEARNABILITY
from espalier.curriculum.prediction import Describe, PassRatePredictor, undescribed
from espalier.records import Task

_PRIOR_ATTEMPTS = 2.0
"""Weight, in attempts, of the mean over tasks of the same signature: a single group is noisy."""

_MEMORY = 0.5
"""Discount of earlier attempts with each new group, since the policy has changed."""

_LEAST_SHARE = 0.05
"""Least share with which a kind is drawn: otherwise the only task of a kind would be in every
step."""


@dataclass(slots=True)
class TaskRecord:
    """Attempts at one task, earlier ones discounted."""

    attempts: float = 0.0
    successes: float = 0.0


class TaskPool:
    """Draws the tasks of a step by the rule of the profile, from the known pass rates."""

    def __init__(
        self,
        tasks: Sequence[Task],
        config: CurriculumConfig,
        *,
        group_size: int = 16,
        reward_span: tuple[float, float] | None = None,
        describe: Describe = undescribed,
        rename: Callable[[Task, random.Random], Task] | None = None,
    ) -> None:
        """Begin without any attempt.

        Args:
            tasks: tasks of the pool.
            config: how they are drawn.
            group_size: rollouts of a task without screening; predictions use at least 2.
            reward_span: rewards of a wrong and a right outcome; set if rewards are predicted.
            describe: the family's description of a task, for predictions and for drawing by kind.
            rename: gives a drawn task other names, and keeps its id.
        """
        self._tasks = {task.task_id: task for task in tasks}
        self._config = config
        self._records: dict[str, TaskRecord] = defaultdict(TaskRecord)
        self._kept: list[str] = list(self._tasks)
        self._others: list[str] = []
        self._quarantined: frozenset[str] = frozenset()
        self._is_wide = False
        self._rename = rename
        self._describe = describe
        self._kinds: dict[str, tuple[str, ...]] = {}
        self._rollouts = config.active_screening or max(2, group_size)
        self._reward_span = reward_span
        predicts = reward_span is not None or self._draws_by_prediction
        self._predictor = PassRatePredictor(tasks, describe) if predicts else None

    @property
    def _draws_by_prediction(self) -> bool:
        return self._config.enabled and self._config.draw in ("predicted", "frontier")

    @property
    def num_kept(self) -> int:
        """Number of tasks inside the band at the last refresh."""
        return len(self._kept)

    @property
    def tasks(self) -> list[Task]:
        """Return all tasks, inside and outside the band."""
        return list(self._tasks.values())

    def task(self, task_id: str) -> Task:
        """Return the task with that id."""
        return self._tasks[task_id]

    def add(self, tasks: Sequence[Task]) -> None:
        """Add tasks, of ids that are not in the pool.

        Until the next refresh they are drawn as if their pass rate were in `pass_rate_band`.
        """
        for task in tasks:
            assert task.task_id not in self._tasks, f"{task.task_id} is in the pool already"
            self._tasks[task.task_id] = task
            self._kept.append(task.task_id)
        if self._predictor is not None:
            self._predictor.add(tasks)

    def quarantine(self, task_ids: Iterable[str]) -> bool:
        """Draw these tasks, and no others, no more.

        Returns:
            Whether that was done: not where fewer than two others would be left.
        """
        named = frozenset(task_ids)
        can_be = len(self._tasks) - len(named & self._tasks.keys()) > 1
        if can_be:
            self._quarantined = named
        return can_be

    def widen(self) -> bool:
        """Put all tasks inside the band until `narrow`.

        Returns:
            Whether that changes what is drawn: not where all are inside, or none is drawn by it.
        """
        narrows = self._config.enabled and self._config.draw in ("band", "kinds")
        has_others = bool(self._others)
        self._is_wide = True
        self.refresh()
        return narrows and has_others

    def narrow(self) -> None:
        """Put the tasks inside the band whose pass rates the profile asks for."""
        self._is_wide = False
        self.refresh()

    def observe(self, task_id: str, *, attempts: int, successes: int) -> None:
        """Record a group of rollouts."""
        record = self._records[task_id]
        record.attempts = record.attempts * _MEMORY + attempts
        record.successes = record.successes * _MEMORY + successes
        if self._predictor is not None:
            self._predictor.observe(task_id, attempts=attempts, successes=successes)

    def refresh(self) -> None:
        """Recompute which tasks are inside the band; unchanged if none would be."""
        if not self._config.enabled:
            return
        low, high = (0.0, 1.0) if self._is_wide else self._config.pass_rate_band
        rates = self.estimates()
        kept = [task_id for task_id in self._tasks if low <= rates[task_id] <= high]
        if kept:
            chosen = set(kept)
            self._kept = kept
            self._others = [task_id for task_id in self._tasks if task_id not in chosen]

    def estimates(self) -> dict[str, float]:
        """Return every task's pass rate: predicted, or shrunk towards its signature's mean."""
        if self._predictor is not None and self._draws_by_prediction:
            return self._predictor.rates()
        attempts: dict[str, float] = defaultdict(float)
        successes: dict[str, float] = defaultdict(float)
        for task_id, record in self._records.items():
            signature = self._tasks[task_id].metadata.pattern
            attempts[signature] += record.attempts
            successes[signature] += record.successes
        overall = sum(successes.values()) / max(1.0, sum(attempts.values()))
        rates = {}
        for task_id, task in self._tasks.items():
            signature = task.metadata.pattern
            prior = (successes[signature] + overall) / (attempts[signature] + 1.0)
            record = self._records.get(task_id, TaskRecord())
            rates[task_id] = (record.successes + _PRIOR_ATTEMPTS * prior) / (
                record.attempts + _PRIOR_ATTEMPTS
            )
        return rates

    def predicted_reward(self, task_id: str) -> float:
        """Return the expected outcome of a task, in a pool with a `reward_span`."""
        assert self._predictor is not None, "a pool with a span predicts"
        assert self._reward_span is not None, "the pool was made to predict rewards"
        low, high = self._reward_span
        return low + (high - low) * self._predictor.rate(task_id)

    def draw(self, count: int, rng: random.Random, *, without: Iterable[str] = ()) -> list[Task]:
        """Draw `count` distinct tasks (fewer where the pool is smaller), none of `without`."""
        used = set(without) | (self._quarantined & self._tasks.keys())
        drawn: list[str] = []
        choose = self._chooser(rng)
        while len(drawn) < count and len(used) < len(self._tasks):
            task_id = choose(rng, used)
            if task_id not in used:
                used.add(task_id)
                drawn.append(task_id)
        tasks = [self._tasks[task_id] for task_id in drawn]
        return tasks if self._rename is None else [self._rename(task, rng) for task in tasks]

    def _chooser(self, rng: random.Random) -> Choose:
        config, everything = self._config, list(self._tasks)
        if self._predictor is not None and self._draws_by_prediction:
            if config.draw == "frontier":
                return from_frontier(self._predictor, config.explore_share)
            return by_prediction(
                self._predictor,
                rollouts=self._rollouts,
                explore_share=config.explore_share,
                rng=rng,
            )
        if not config.enabled or config.draw == "uniform":
            return uniform(everything)
        if config.draw == "patterns":
            by_pattern: dict[str, list[str]] = defaultdict(list)
            for task_id, task in self._tasks.items():
                by_pattern[task.metadata.pattern].append(task_id)
            return over_patterns(by_pattern)
        band = Band(self._kept, self._others, everything)
        return from_band(band, config.explore_share, self._weights())

    def _weights(self) -> dict[str, float]:
        """Return the kept tasks' weights by the profile's preference; {} if all are equal.

        Where kinds have equal weights, each kind's weight is shared among its tasks. The weights
        depend only on the current estimates: a resumed run draws the tasks of an unbroken one.
        """
        weights: dict[str, float] = {}
        if self._config.preference != "even":
            rates, weigh = self.estimates(), LEARNABILITY[self._config.preference]
            weights = {task_id: weigh(rates[task_id]) for task_id in self._kept}
        if self._config.draw != "kinds":
            return weights
        alike = Counter(map(self._kind, self._kept))
        if len(alike) == 1:
            return weights
        least = _LEAST_SHARE * len(self._kept)
        return {
            task_id: weights.get(task_id, 1.0) / max(least, alike[self._kind(task_id)])
            for task_id in self._kept
        }

    def _kind(self, task_id: str) -> tuple[str, ...]:
        """Return the groups of reports that contain the task: its kind of question, its steps."""
        kind = self._kinds.get(task_id)
        if kind is None:
            groups = self._describe(self._tasks[task_id]).groups
            kind = self._kinds[task_id] = tuple(groups.values())
        return kind

    def state(self) -> dict[str, Any]:
        """Return records for a checkpoint, with the predictor's state, for `restore`."""
        records = {tid: [r.attempts, r.successes] for tid, r in self._records.items()}
        if self._predictor is None:
            return records
        return {"records": records, "predictor": self._predictor.state()}

    def restore(self, state: Mapping[str, Any], kept: Sequence[str]) -> None:
        """Continue from a checkpoint: the records, and the tasks inside the band."""
        records: Mapping[str, Sequence[float]] = (
            state if self._predictor is None else state["records"]
        )
        self._records.clear()
        for task_id, (attempts, successes) in records.items():
            self._records[task_id] = TaskRecord(attempts, successes)
        if self._predictor is not None:
            self._predictor.restore(state["predictor"])
        chosen = set(kept)
        self._kept = list(kept)
        self._others = [task_id for task_id in self._tasks if task_id not in chosen]

    def kept_ids(self) -> list[str]:
        """Return the ids of the tasks inside the band."""
        return list(self._kept)

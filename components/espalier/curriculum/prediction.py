"""Predicts the next rollouts of a task: its pass rate, and whether both outcomes occur.

    observed groups -> logistic regression over features -> prior of every task, tried or not
    prior + the task's own discounted attempts           -> Beta posterior
    posterior                                            -> chance of a mixed group of n rollouts

The regression is updated online by an extended Kalman filter with a diagonal covariance (West and
Harrison 1997, ch. 14): one update for each group, in which older groups count less and less, since
the policy changes. Tasks with the same description differ by far more than chance
(`_TASK_SPREAD`), so a group of 16 tells hardly more about the features than one of 4. The policy's
change is measured in attempts, whatever the size of their groups.

All results depend only on the observed groups and their order.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from espalier.records import Task

FloatArray = NDArray[np.float64]
# axis suffixes: N tasks, F features of a task, D features of all tasks

_TASK_SPREAD = 4.0
"""Variance between tasks of one description, logits squared. This value, the prior's weight and the
variances were chosen by tests.benchmarks.curriculum_prediction on two runs of the demo."""
_PRIOR_ATTEMPTS = 3.0
"""Weight of the regression in a task's posterior, in attempts; `_TASK_SPREAD` as a Beta's
parameter."""
_OWN_HALF_LIFE = 16
"""Number of new attempts at a task after which its earlier ones count half: a group of the
profiles."""
_HALF_LIFE = 6_400
"""Number of attempts at any tasks after which a task's own count half: 25 steps of 256 rollouts."""
_FORGETTING = 6e-5
"""Share of the distance to its prior by which a weight's variance returns with each attempt."""
_LEAST_VARIANCE = 0.02
"""Variance of one outcome, as at a rate of 0.02: closer to 0 and 1 a rare outcome would have too
much effect."""
_MOST_SURPRISE = 8.0
"""Largest difference, in logits, of a group from its prediction: far from it the logistic curve is
flat, and its tangent overestimates. One attempt may differ by more: cutting off only its rarer
outcome would draw low rates to 0 and high ones to 1."""

_VARIANCES = {"all": 4.0, "group": 0.5, "pattern": 0.3, "part": 0.3, "number": 0.3}
"""Prior variance of a weight by the kind of its feature, logits squared."""


class Description(NamedTuple):
    """What a family tells about a task, besides what every task has."""

    groups: Mapping[str, str]
    """Groups as in reports: the kind of question, its steps."""
    names: Sequence[str]
    """Names of the entities in it."""


Describe = Callable[[Task], Description]


def undescribed(task: Task) -> Description:
    """Return the description that every task has."""
    steps = task.metadata.difficulty
    return Description({} if steps is None else {"steps": f"{steps:g}"}, ())


def mixed_chance(wins_N: FloatArray, losses_N: FloatArray, rollouts: int) -> FloatArray:
    """Return [N]: the chance that `rollouts` attempts hold both outcomes, 1 - E p^n - E (1-p)^n.

    Args:
        wins_N: [N], first parameter of each task's Beta distribution.
        losses_N: [N], its second parameter.
        rollouts: n in the formula.
    """
    total_N = wins_N + losses_N
    all_win_N, none_wins_N = np.ones_like(total_N), np.ones_like(total_N)
    for done in range(rollouts):
        all_win_N *= (wins_N + done) / (total_N + done)
        none_wins_N *= (losses_N + done) / (total_N + done)
    return np.clip(1 - all_win_N - none_wins_N, 0.0, 1.0)


class PassRatePredictor:
    """Predicts every task of a pool from the observed groups."""

    def __init__(self, tasks: Sequence[Task], describe: Describe = undescribed) -> None:
        self._describe = describe
        self._numbers = _Numbers(tasks, describe)
        self._columns: dict[str, int] = {}
        self._places: dict[str, int] = {}
        self._rows: list[tuple[list[int], list[float]]] = []
        self._columns_NF = np.zeros((0, 0), dtype=np.int64)
        self._values_NF = np.zeros((0, 0))
        self._patterns: dict[str, int] = {}
        self._pattern_of: list[int] = []
        self._mean_D = np.zeros(0)
        self._variance_D = np.zeros(0)
        self._prior_D = np.zeros(0)
        self._attempts = 0.0
        self._own_N3 = np.zeros((0, 3))
        """[N, 3]: each task's attempts and successes, and all attempts when they were counted."""
        self.add(tasks)

    def add(self, tasks: Sequence[Task]) -> None:
        """Predict further tasks too."""
        for task in tasks:
            features = self._features(task)
            for name in features:
                self._columns.setdefault(name, len(self._columns))
            pattern = self._patterns.setdefault(task.metadata.pattern, len(self._patterns))
            self._pattern_of.append(pattern)
            self._places[task.task_id] = len(self._rows)
            self._rows.append(([self._columns[n] for n in features], list(features.values())))
        known = len(self._prior_D)
        names = list(self._columns)[known:]
        fresh_D = np.array([_VARIANCES[name.partition(":")[0]] for name in names])
        self._mean_D = np.concatenate([self._mean_D, np.zeros(len(names))])
        self._variance_D = np.concatenate([self._variance_D, fresh_D])
        self._prior_D = np.concatenate([self._prior_D, fresh_D])
        untried_N3 = np.zeros((len(self._rows) - len(self._own_N3), 3))
        self._own_N3 = np.concatenate([self._own_N3, untried_N3])

    def observe(self, task_id: str, *, attempts: float, successes: float) -> None:
        """Learn from a group of `attempts` rollouts of one task."""
        if attempts <= 0:
            return
        place = self._places[task_id]
        columns, values = self._rows[place]
        values_F = np.array(values)
        rate = _sigmoid(float(self._mean_D[columns] @ values_F))
        information = attempts * max(rate * (1 - rate), _LEAST_VARIANCE)
        surprise = (successes - attempts * rate) / information
        most = max(_MOST_SURPRISE, 1 / information)
        surprise = min(max(surprise, -most), most)
        gains_F = self._variance_D[columns] * values_F
        # the variance of a single outcome, p (1 - p), includes the spread between tasks
        between_tasks = _TASK_SPREAD * max(0.0, 1 - 1 / attempts)
        spread = float(gains_F @ values_F) + 1 / information + between_tasks
        self._mean_D[columns] += gains_F * (surprise / spread)
        self._variance_D[columns] -= gains_F**2 / spread
        forgotten = 1 - (1 - _FORGETTING) ** attempts
        self._variance_D += forgotten * (self._prior_D - self._variance_D)
        self._attempts += attempts
        self._own_N3[place, :2] *= 0.5 ** (attempts / _OWN_HALF_LIFE)
        self._own_N3[place] += (attempts, successes, 0)
        self._own_N3[place, 2] = self._attempts

    def rates(self) -> dict[str, float]:
        """Return the expected pass rate of every task."""
        wins_N, losses_N = self.posteriors()
        rates_N = wins_N / (wins_N + losses_N)
        return dict(zip(self._places, rates_N.tolist(), strict=True))

    def rate(self, task_id: str) -> float:
        """Return the expected pass rate of one task."""
        place = self._places[task_id]
        columns, values = self._rows[place]
        rate = _sigmoid(float(self._mean_D[columns] @ np.array(values)))
        [wins], [losses] = self._posteriors(np.array([rate]), self._own_N3[place : place + 1])
        return float(wins / (wins + losses))

    def posteriors(self, rng: random.Random | None = None) -> tuple[FloatArray, FloatArray]:
        """Return [N] each: the parameters of the tasks' Beta distributions, in order of addition.

        Args:
            rng: samples the weights of the regression from their distribution (Thompson 1933), so
                that uncertain tasks are tried; None takes their means.
        """
        weights_D = self._mean_D
        if rng is not None:
            dice = np.random.default_rng(rng.getrandbits(64))
            weights_D = weights_D + np.sqrt(self._variance_D) * dice.standard_normal(len(weights_D))
        rates_N = 1 / (1 + np.exp(-np.clip(self.logits(weights_D), -30, 30)))
        return self._posteriors(rates_N, self._own_N3)

    def _posteriors(self, rates_N: FloatArray, own_N3: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return [N] each: Beta parameters for these predicted rates and own attempts."""
        wins_N = _PRIOR_ATTEMPTS * np.clip(rates_N, 1e-3, 1 - 1e-3)
        losses_N = _PRIOR_ATTEMPTS - wins_N
        attempts_N, successes_N, counted_N = own_N3.T
        shares_N = 0.5 ** ((self._attempts - counted_N) / _HALF_LIFE)
        return (
            wins_N + shares_N * successes_N,
            losses_N + shares_N * (attempts_N - successes_N),
        )

    def logits(self, weights_D: FloatArray) -> FloatArray:
        """Return [N]: the regression's logit for each task under `weights_D`."""
        if len(self._values_NF) < len(self._rows):
            # the value after a task's last feature is 0
            most = max((len(columns) for columns, _ in self._rows), default=0)
            self._columns_NF = np.zeros((len(self._rows), most), dtype=np.int64)
            self._values_NF = np.zeros((len(self._rows), most))
            for place, (columns, values) in enumerate(self._rows):
                self._columns_NF[place, : len(columns)] = columns
                self._values_NF[place, : len(values)] = values
        return (weights_D[self._columns_NF] * self._values_NF).sum(axis=1)

    @property
    def task_ids(self) -> list[str]:
        """Ids of the N tasks, in their order."""
        return list(self._places)

    @property
    def patterns(self) -> NDArray[np.int64]:
        """Return [N]: the number of each task's pattern, from 0."""
        return np.array(self._pattern_of)

    def untried(self) -> NDArray[np.bool_]:
        """Return [N] bool: the tasks without an attempt."""
        return self._own_N3[:, 2] == 0

    def state(self) -> dict[str, Any]:
        """Return what was learned as plain data, for `restore`."""
        return {
            "weights": {
                name: [float(self._mean_D[column]), float(self._variance_D[column])]
                for name, column in self._columns.items()
            },
            "tasks": {
                task_id: self._own_N3[place].tolist()
                for task_id, place in self._places.items()
                if self._own_N3[place, 2]
            },
            "attempts": self._attempts,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; features that it lacks keep their prior."""
        for name, (mean, variance) in state["weights"].items():
            if (column := self._columns.get(name)) is not None:
                self._mean_D[column], self._variance_D[column] = mean, variance
        for task_id, own in state["tasks"].items():
            if (place := self._places.get(task_id)) is not None:
                self._own_N3[place] = own
        self._attempts = state["attempts"]

    def _features(self, task: Task) -> dict[str, float]:
        pattern = task.metadata.pattern
        features = {"all:": 1.0}
        for grouping, group in self._describe(task).groups.items():
            features[f"group:{grouping}={group}"] = 1.0
        if pattern:
            features[f"pattern:{pattern}"] = 1.0
        for part, count in Counter(re.findall(r"\w+", pattern)[:_MOST_PARTS]).items():
            features[f"part:{part}"] = float(count)
        return features | self._numbers.of(task)


_MOST_PARTS = 12
"""Most words of a pattern that are features of their own: patterns that share relations are
similar."""


class _Numbers:
    """Lengths and frequencies, standardised over the first tasks of a pool."""

    def __init__(self, tasks: Sequence[Task], describe: Describe) -> None:
        self._describe = describe
        self._tasks_of_name = Counter(name for task in tasks for name in describe(task).names)
        columns: dict[str, list[float]] = defaultdict(list)
        for task in tasks:
            for name, value in self._raw(task).items():
                columns[name].append(value)
        self._scales = {
            name: (float(np.mean(values)), float(np.std(values)))
            for name, values in columns.items()
        }

    def of(self, task: Task) -> dict[str, float]:
        """Standard scores, cut off at 3; a number that is the same for all tasks is left out."""
        found: dict[str, float] = {}
        for name, value in self._raw(task).items():
            mean, deviation = self._scales.get(name, (0.0, 0.0))
            if deviation > 0:
                found[f"number:{name}"] = min(max((value - mean) / deviation, -3.0), 3.0)
        return found

    def _raw(self, task: Task) -> dict[str, float]:
        gold = task.verifier.gold[0]
        found = {
            "question_words": float(len(task.question.split())),
            "gold_characters": math.log1p(len(gold)),
            "gold_words": math.log1p(len(gold.split())),
        }
        if names := self._describe(task).names:
            found["name_characters"] = math.log1p(len(names[0]))
            found["name_tasks"] = math.log1p(self._tasks_of_name[names[0]])
        return found


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-min(max(logit, -30.0), 30.0)))

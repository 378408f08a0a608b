"""What would ways of drawing tasks tell per rollout, on the tasks of a run and made-up pass rates?

    python -m tests.benchmarks.curriculum_simulation --run runs/demo --seeds 3

No policy is trained: every task has a logit of its own, a sum of effects of its features and a
remainder, and all rise over the steps alike, from a mean pass rate of 0.1 to one of 0.55. Effects
and remainder are drawn from the seed, so wide that of uniform draws' rollouts about the share is in
groups with variance that was measured (0.83, tests.benchmarks.curriculum). So the table says how
well a way finds groups with variance, and nothing of what a policy learns from them.

    rollouts       of the run
    a group        rollouts for each group that trains
    informative    share of the rollouts that were in groups with variance
    told           sum of (n - 1) p (1 - p) over the groups that train, by the rollout, times 4:
                   1 would be tasks of p = 1/2 alone

Beside the product's ways: `greso`, uniform draws of which tasks with a history of groups without
variance are skipped (arXiv:2506.02177, with a base exploration of 0.5), and `ar3po`, uniform draws
whose groups grow by 4 until one of them is right and one is wrong (arXiv:2509.25808).
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from espalier.config import CurriculumConfig
from espalier.curriculum.pool import TaskPool
from espalier.curriculum.prediction import Description, PassRatePredictor
from espalier.records import Task, read_tasks

GROUP, SCREENING, TASKS_PER_STEP, DRAWS = 16, 4, 16, 3
EFFECTS = {"all": 0.0, "group": 0.8, "pattern": 0.6, "part": 0.35, "number": 0.4}
REMAINDER = 1.4
"""Standard deviations, logits."""
FIRST, LAST = -3.0, 0.3
"""Mean logits of the first step and the last."""
WAYS = ("uniform", "greso", "ar3po", "patterns", "band", "frontier", "predicted")
SCREENED = ("band", "frontier", "predicted")


class World:
    """Tasks with pass rates that rise."""

    def __init__(self, tasks: Sequence[Task], seed: int, steps: int) -> None:
        dice = np.random.default_rng(seed)
        predictor = PassRatePredictor(tasks, describe)
        features = list(predictor.state()["weights"])
        effects_D = np.array([dice.normal() * EFFECTS[n.partition(":")[0]] for n in features])
        logits_N = predictor.logits(effects_D)
        logits_N += dice.normal(size=len(tasks)) * REMAINDER
        self._logits = dict(
            zip(predictor.task_ids, (logits_N - logits_N.mean()).tolist(), strict=True)
        )
        self._steps = steps
        self.dice = dice

    def rate(self, task_id: str, step: int) -> float:
        """Pass rate of a task; most of the rise comes early."""
        done = (1 - math.exp(-2.4 * step / self._steps)) / (1 - math.exp(-2.4))
        return 1 / (1 + math.exp(-self._logits[task_id] - FIRST - (LAST - FIRST) * done))


def describe(task: Task) -> Description:
    """As search questions are described."""
    names = task.extra.get("entities")
    groups = {name: str(task.extra[name]) for name in ("kind", "hops") if name in task.extra}
    return Description(groups, list(map(str, names)) if isinstance(names, list) else [])


class Simulation:
    """One run of one way."""

    def __init__(self, way: str, tasks: Sequence[Task], seed: int, steps: int) -> None:
        self.way, self.steps = way, steps
        self.world = World(tasks, seed, steps)
        draw: Any = way if way in (*SCREENED, "patterns") else "uniform"
        config = CurriculumConfig(draw=draw, pass_rate_band=(0.02, 0.95))
        self.pool = TaskPool(tasks, config, group_size=GROUP, describe=describe)
        self.first = SCREENING if way in (*SCREENED, "ar3po") else GROUP
        self.flat: Counter[str] = Counter()
        """Task -> groups without variance in a row."""
        self.rollouts = self.informative = self.groups = 0
        self.told = 0.0

    def run(self) -> dict[str, float]:
        """All steps; returns a row of the table."""
        rng = random.Random(f"judged:{self.way}")
        for task in rng.sample(self.pool.tasks, min(100, len(self.pool.tasks))):
            right = self.world.dice.binomial(4, self.world.rate(task.task_id, 0))
            self.pool.observe(task.task_id, attempts=4, successes=int(right))
        self.pool.refresh()
        for step in range(self.steps):
            self._step(step, random.Random(f"{self.way}:{step}"))
            if (step + 1) % 5 == 0:
                self.pool.refresh()
        return {
            "rollouts": self.rollouts,
            "a group": self.rollouts / self.groups,
            "informative": self.informative / self.rollouts,
            "told": 4 * self.told / self.rollouts,
        }

    def _step(self, step: int, rng: random.Random) -> None:
        found = tried = 0
        used: set[str] = set()
        for _ in range(DRAWS):
            missing = TASKS_PER_STEP - found
            passed = found / tried if tried else 0.5
            screened = self.way in SCREENED
            wanted = math.ceil(missing / max(passed, 0.25)) if screened else missing
            for task in self._drawn(wanted, rng, used) if missing > 0 else []:
                used.add(task.task_id)
                tried += 1
                found += self._sample(task.task_id, step, needed=found < TASKS_PER_STEP)

    def _drawn(self, count: int, rng: random.Random, used: set[str]) -> list[Task]:
        if self.way != "greso":
            return self.pool.draw(count, rng, without=used)
        kept: list[Task] = []
        while len(kept) < count:
            task = self.pool.draw(1, rng, without=used)[0]
            if rng.random() < 0.5 ** self.flat[task.task_id]:
                kept.append(task)
                used.add(task.task_id)
        return kept

    def _sample(self, task_id: str, step: int, *, needed: bool) -> bool:
        rate = self.world.rate(task_id, step)
        count, right = self.first, int(self.world.dice.binomial(self.first, rate))
        if self.way == "ar3po":
            while count < GROUP and right in (0, count):
                right += int(self.world.dice.binomial(SCREENING, rate))
                count += SCREENING
        elif self.first < GROUP and 0 < right < count and needed:
            right += int(self.world.dice.binomial(GROUP - count, rate))
            count = GROUP
        is_mixed = 0 < right < count
        self.rollouts += count
        self.informative += count * is_mixed
        self.flat[task_id] = 0 if is_mixed else self.flat[task_id] + 1
        self.pool.observe(task_id, attempts=count, successes=right)
        trains = is_mixed and needed
        self.groups += trains
        self.told += trains * (count - 1) * rate * (1 - rate)
        return trains


def main() -> None:
    """A line for each way, the mean over the seeds, and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--run", type=Path, required=True, help="whose training tasks are drawn")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    tasks = read_tasks(options.run / "curriculum" / "tasks.jsonl")
    table: dict[str, dict[str, float]] = {}
    print("way          rollouts  a group  informative   told")
    for way in WAYS:
        rows = [Simulation(way, tasks, seed, options.steps).run() for seed in range(options.seeds)]
        row = {name: sum(one[name] for one in rows) / len(rows) for name in rows[0]}
        table[way] = {name: round(value, 3) for name, value in row.items()}
        print(
            f"{way:<12}{row['rollouts']:>9.0f}{row['a group']:>9.1f}{row['informative']:>13.2f}"
            f"{row['told']:>7.3f}",
            flush=True,
        )
    print(json.dumps(table))


if __name__ == "__main__":
    main()

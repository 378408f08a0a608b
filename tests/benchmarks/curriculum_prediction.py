"""How well are pass rates predicted, on the sampled held-out questions of finished runs?

    python -m tests.benchmarks.curriculum_prediction --runs runs/demo

Each run's warm start and trained policy answered some hundred questions, four times each. A pool
is told them one by one, shuffled, and predicts each before, from the hundredth on: as the band
does, by the means of patterns, and as `curriculum.draw = "predicted"` does. No question comes
twice, so that this judges what is known of a task that was never tried.

    nats           mean of -log(probability) of an answer's being right or wrong; less is better
    mixed          of the quarter that was predicted to be nearest to 1/2, the share that was
                   answered rightly and wrongly; in brackets the share of all
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from espalier.config import CurriculumConfig
from espalier.curriculum.pool import TaskPool
from espalier.records import Task, read_tasks
from tests.benchmarks.curriculum_simulation import describe

FIRST = 100
"""Questions that are told and not judged: as many as the profile tiny estimates beforehand."""
POLICIES = ("warm_start", "trained")


def answered(run: Path, policy: str) -> list[tuple[Task, int, int]]:
    """Question, attempts and right answers of every question that was sampled, shuffled."""
    tasks = {task.task_id: task for task in read_tasks(run / "accepted/tasks/heldout.jsonl")}
    rows = pq.read_table(run / "evaluation" / "questions.parquet").to_pylist()
    found = [
        (tasks[row["task_id"]], row["samples"], row["samples_right"])
        for row in sorted(rows, key=lambda row: row["task_id"])
        if row["policy"] == policy and row["samples"]
    ]
    random.Random(0).shuffle(found)
    return found


def judged(pool: TaskPool, found: Sequence[tuple[Task, int, int]]) -> dict[str, float]:
    """Tell the pool the answers in their order; returns a row of the table."""
    nats, outcomes, by_score = 0.0, 0, list[tuple[float, bool]]()
    for place, (task, samples, right) in enumerate(found):
        if place >= FIRST:
            rate = min(max(pool.estimates()[task.task_id], 1e-3), 1 - 1e-3)
            nats -= right * math.log(rate) + (samples - right) * math.log(1 - rate)
            outcomes += samples
            by_score.append((rate * (1 - rate), 0 < right < samples))
        pool.observe(task.task_id, attempts=samples, successes=right)
    by_score.sort(reverse=True)
    quarter = by_score[: len(by_score) // 4]
    return {
        "nats": round(nats / outcomes, 3),
        "mixed": round(sum(mixed for _, mixed in quarter) / len(quarter), 2),
        "mixed_of_all": round(sum(mixed for _, mixed in by_score) / len(by_score), 2),
    }


def main() -> None:
    """A line for each policy and way, and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=Path, nargs="+", required=True)
    options = parser.parse_args()
    table: dict[str, dict[str, dict[str, float]]] = {}
    for run in options.runs:
        for policy in POLICIES:
            found = answered(run, policy)
            tasks = [task for task, *_ in found]
            ways = {
                "band": TaskPool(tasks, CurriculumConfig()),
                "predicted": TaskPool(tasks, CurriculumConfig(draw="predicted"), describe=describe),
            }
            rows = {way: judged(pool, found) for way, pool in ways.items()}
            table[f"{run.name} {policy}"] = rows
            for way, row in rows.items():
                print(
                    f"{run.name:<12}{policy:<12}{way:<12}{row['nats']:.3f} nats  "
                    f"mixed {row['mixed']:.2f} ({row['mixed_of_all']:.2f})"
                )
    print(json.dumps(table))


if __name__ == "__main__":
    main()

"""filter_curriculum: measures pass rates of training tasks, and keeps tasks inside a band.

Inputs: knowledge (train view), accepted training tasks, the warm policy.
Output: tasks.jsonl (all training tasks; with a user's own knowledge, without those whose facts the
warm start's demonstrations contain), pass_rates.parquet (one row per candidate), kept.jsonl (the
candidates inside the band), rollouts.json (number of rollouts that were judged, that the
infrastructure lost in every attempt and so are not judged, and that broke their own sandbox and so
are wrong).
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from espalier.chain import opened, provenance
from espalier.config import Profile
from espalier.curriculum.advice import advice_line
from espalier.curriculum.learnability import keep_learnable
from espalier.environments import Family
from espalier.environments.memory import remembering
from espalier.environments.mixins import fact_of_task
from espalier.records import (
    Manifest,
    Task,
    Tracker,
    publishing,
    read_tasks,
    write_tasks,
)
from espalier.records.trajectory import Trajectory, read_trajectories
from espalier.rollout.roller import Roller

_CHUNK_TASKS = 64


def run(
    profile: Profile,
    inputs: Mapping[str, Path],
    output_dir: Path,
    tracker: Tracker,
    *,
    external_digests: Mapping[str, str] | None = None,
) -> Manifest:
    """Roll out the candidates with the warm policy, and keep those inside the band."""
    manifests = opened(inputs)
    origin = provenance("filter_curriculum", profile, manifests, external_digests)
    config = profile.curriculum
    tasks = read_tasks(inputs["accepted"] / "tasks" / "train.jsonl")
    family = remembering(profile, inputs["accepted"])
    if profile.asks_own_knowledge:
        tasks = _undemonstrated(tasks, inputs["accepted"], family, tracker)
    count = config.candidates if config.enabled else 0
    order = list(range(len(tasks)))
    random.Random(f"candidates:{profile.seed}").shuffle(order)
    candidates = [tasks[index] for index in sorted(order[:count])]
    tallies: dict[str, _Tally] = {}
    if candidates:  # else no engine has to be there
        with family.environments(inputs["knowledge"]) as environments_over:
            policy_dir = inputs["warm_policy"] / "policy"
            roller = Roller.open(policy_dir, environments_over("train"), profile)
            tallies = _judge(profile, roller, candidates, tracker)
    candidates = [task for task in candidates if tallies[task.task_id].attempts]
    rates = {task.task_id: tallies[task.task_id].pass_rate for task in candidates}
    kept = keep_learnable(candidates, rates, config.pass_rate_band)
    if warning := advice_line(list(rates.values()), profile):
        tracker.note(warning)
    with publishing(output_dir, origin) as draft:
        draft.rows["candidates"] = len(candidates)
        draft.rows["kept"] = write_tasks(draft.path / "kept.jsonl", kept)
        write_tasks(draft.path / "tasks.jsonl", tasks)
        _write_pass_rates(draft.path / "pass_rates.parquet", candidates, tallies, kept)
        counts = {
            "rollouts": sum(tally.attempts for tally in tallies.values()),
            "lost_episodes": sum(tally.lost for tally in tallies.values()),
            "broke_sandbox_episodes": sum(tally.broke_sandbox for tally in tallies.values()),
        }
        (draft.path / "rollouts.json").write_text(json.dumps(counts))
    tracker.metrics({"candidates": len(candidates), "kept": len(kept), **counts})
    return draft.published


def _undemonstrated(
    tasks: Sequence[Task], accepted: Path, family: Family[Any], tracker: Tracker
) -> list[Task]:
    """Tasks whose facts no demonstration contains; all tasks if there are none."""
    trajectories = read_trajectories(accepted / "trajectories.parquet")
    shown_ids = {trajectory.task_id for trajectory in trajectories}
    facts = {task.task_id: fact_of_task(family.of(task), task) for task in tasks}
    shown = {fact for task_id, fact in facts.items() if task_id in shown_ids}
    left = [task for task in tasks if facts[task.task_id] not in shown]
    if not left:
        tracker.note(
            "warning: demonstrations cover every training task, so that training repeats the warm "
            "start's facts: lower synthesis.trajectories, or add questions, triples or documents"
        )
        return list(tasks)
    tracker.note(
        f"{len(tasks) - len(left)} of {len(tasks)} training tasks ask for facts of demonstrations; "
        f"training draws from the other {len(left)}"
    )
    return left


@dataclass(slots=True)
class _Tally:
    """Counts of a task's attempts; those that the infrastructure lost are not judged."""

    attempts: int = 0
    successes: int = 0
    lost: int = 0
    broke_sandbox: int = 0
    """Attempts that broke their own sandbox; judged as wrong."""

    def count(self, trajectory: Trajectory) -> None:
        """Count one attempt."""
        self.attempts += not trajectory.is_lost
        self.successes += trajectory.is_right
        self.lost += trajectory.is_lost
        self.broke_sandbox += trajectory.broke_sandbox

    @property
    def pass_rate(self) -> float:
        return self.successes / self.attempts


def _judge(
    profile: Profile, roller: Roller, candidates: Sequence[Task], tracker: Tracker
) -> dict[str, _Tally]:
    samples = profile.curriculum.rollouts_per_task
    tallies = {task.task_id: _Tally() for task in candidates}
    with tracker.progress("filter curriculum", len(candidates)) as progress:
        for start in range(0, len(candidates), _CHUNK_TASKS):
            chunk = candidates[start : start + _CHUNK_TASKS]
            seed = random.Random(f"filter:{profile.seed}:{start}").getrandbits(48)
            for trajectory in roller.roll_out(
                chunk, samples=samples, temperature=profile.training.temperature, seed=seed
            ):
                tallies[trajectory.task_id].count(trajectory)
            progress.advance(len(chunk))
    return tallies


def _write_pass_rates(
    path: Path,
    candidates: Sequence[Task],
    tallies: dict[str, _Tally],
    kept: Sequence[Task],
) -> None:
    kept_ids = {task.task_id for task in kept}
    rows = [
        {
            "task_id": task.task_id,
            "pattern": task.metadata.pattern,
            "difficulty": task.metadata.difficulty,
            "attempts": tallies[task.task_id].attempts,
            "successes": tallies[task.task_id].successes,
            "lost_episodes": tallies[task.task_id].lost,
            "broke_sandbox_episodes": tallies[task.task_id].broke_sandbox,
            "pass_rate": tallies[task.task_id].pass_rate,
            "kept": task.task_id in kept_ids,
        }
        for task in candidates
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=_PASS_RATES), path)


_PASS_RATES = pa.schema(
    [
        ("task_id", pa.string()),
        ("pattern", pa.string()),
        ("difficulty", pa.float64()),
        ("attempts", pa.int64()),
        ("successes", pa.int64()),
        ("lost_episodes", pa.int64()),
        ("broke_sandbox_episodes", pa.int64()),
        ("pass_rate", pa.float64()),
        ("kept", pa.bool_()),
    ]
)

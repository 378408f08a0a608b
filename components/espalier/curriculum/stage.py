"""filter_curriculum: the pass rate of training tasks under the warm-started policy.

Enters: knowledge (train view), accepted training tasks, the warm policy.
Leaves: tasks.jsonl (all training tasks), pass_rates.parquet (one row a candidate), kept.jsonl
(the candidates inside the band), rollouts.json (how many rollouts it took).
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from espalier.artifacts import (
    Manifest,
    Provenance,
    Tracker,
    open_artifact,
    publishing,
)
from espalier.config import Profile
from espalier.curriculum.difficulty import keep_learnable
from espalier.environments import opened_environments
from espalier.rollout.roller import Roller
from espalier.tasks import Task, read_tasks, write_tasks

_CHUNK_TASKS = 64


class Inputs(NamedTuple):
    """Artifact directories that the stage reads."""

    knowledge: Path
    accepted: Path
    warm_policy: Path


def run(profile: Profile, inputs: Inputs, output_dir: Path, tracker: Tracker) -> Manifest:
    """Roll the candidates out, keep those inside the band."""
    manifests = {name: open_artifact(path) for name, path in inputs._asdict().items()}
    provenance = Provenance(
        producer="filter_curriculum",
        config_digest=profile.stage_digest("filter_curriculum"),
        seed=profile.seed,
        inputs={name: manifest.content for name, manifest in manifests.items()},
    )
    config = profile.curriculum
    tasks = read_tasks(inputs.accepted / "tasks" / "train.jsonl")
    candidates = _candidates(tasks, config.candidates if config.enabled else 0, profile.seed)
    with opened_environments(profile, inputs.knowledge) as environments_over:
        policy_dir = inputs.warm_policy / "policy"
        roller = Roller.open(policy_dir, environments_over("train"), profile)
        tallies = _judge(profile, roller, candidates, tracker)
    candidates = [task for task in candidates if tallies[task.task_id].attempts]
    rates = {task.task_id: tallies[task.task_id].pass_rate for task in candidates}
    kept = keep_learnable(candidates, rates, config.pass_rate_band)
    if candidates and not kept:
        tracker.note(
            f"warning: no candidate's pass rate lies inside curriculum.pass_rate_band="
            f"{config.pass_rate_band} (mean {sum(rates.values()) / len(rates):.2f}); training will "
            "draw from all tasks. Train the warm start longer, or widen the band"
        )
    with publishing(output_dir, provenance) as draft:
        draft.rows["candidates"] = len(candidates)
        draft.rows["kept"] = write_tasks(draft.path / "kept.jsonl", kept)
        write_tasks(draft.path / "tasks.jsonl", tasks)
        _write_pass_rates(draft.path / "pass_rates.parquet", candidates, tallies, kept)
        (draft.path / "rollouts.json").write_text(
            json.dumps({"rollouts": sum(tally.attempts for tally in tallies.values())})
        )
    tracker.metrics({"candidates": len(candidates), "kept": len(kept)})
    return draft.published


def _candidates(tasks: Sequence[Task], count: int, seed: int) -> list[Task]:
    order = list(range(len(tasks)))
    random.Random(f"candidates:{seed}").shuffle(order)
    return [tasks[index] for index in sorted(order[:count])]


@dataclass(slots=True)
class _Tally:
    """Attempts at a task that were judged: one whose environment failed says nothing of it."""

    attempts: int = 0
    successes: int = 0

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
                if not trajectory.is_lost:
                    tallies[trajectory.task_id].attempts += 1
                    tallies[trajectory.task_id].successes += trajectory.reward["outcome"] > 0
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
            "family": task.metadata.family,
            "hops": task.metadata.hops,
            "attempts": tallies[task.task_id].attempts,
            "successes": tallies[task.task_id].successes,
            "pass_rate": tallies[task.task_id].pass_rate,
            "kept": task.task_id in kept_ids,
        }
        for task in candidates
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=_PASS_RATES), path)


_PASS_RATES = pa.schema(
    [
        ("task_id", pa.string()),
        ("family", pa.string()),
        ("hops", pa.int64()),
        ("attempts", pa.int64()),
        ("successes", pa.int64()),
        ("pass_rate", pa.float64()),
        ("kept", pa.bool_()),
    ]
)

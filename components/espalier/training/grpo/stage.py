"""train: GRPO over search episodes, from the warm-started policy.

Enters: knowledge (train and dev views), accepted dev tasks, the curriculum, the warm policy.
Leaves: policy/ with the best weights by dev EM, history.parquet, trajectories.parquet of the last
step, run.json with the throughput.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from espalier.artifacts import (
    Manifest,
    Provenance,
    Tracker,
    json_digest,
    open_artifact,
    publishing,
    work_dir,
)
from espalier.config import Profile
from espalier.curriculum.pool import TaskPool
from espalier.knowledge.search import SearchTool
from espalier.policy.loading import load_policy, save_policy
from espalier.rollout.roller import Roller
from espalier.rollout.trajectory import write_trajectories
from espalier.tasks import read_tasks
from espalier.training.checkpoint import CheckpointStore
from espalier.training.dev_score import dev_exact_match
from espalier.training.grpo.loop import HISTORY_COLUMNS, GrpoLoop, Parts
from espalier.training.history import write_history


class Inputs(NamedTuple):
    """Artifact directories that the stage reads."""

    knowledge: Path
    accepted: Path
    curriculum: Path
    warm_policy: Path


def run(profile: Profile, inputs: Inputs, output_dir: Path, tracker: Tracker) -> Manifest:
    """Train, keep the weights that answer most dev questions, publish them."""
    manifests = {name: open_artifact(path) for name, path in inputs._asdict().items()}
    provenance = Provenance(
        producer="train",
        config_digest=profile.stage_digest("train"),
        seed=profile.seed,
        inputs={name: manifest.content for name, manifest in manifests.items()},
    )
    config = profile.training
    policy_dir = inputs.warm_policy / "policy"
    policy = load_policy(policy_dir)
    roller = Roller(policy, SearchTool.open(inputs.knowledge, "train", profile.search), profile)
    dev_search = SearchTool.open(inputs.knowledge, "dev", profile.search)
    dev_roller = Roller(policy, dev_search, profile)
    dev_tasks = read_tasks(inputs.accepted / "tasks" / "dev.jsonl")[: config.dev_questions]
    parts = Parts(
        model=policy.model,
        reference=load_policy(policy_dir).model if config.kl_coefficient else None,
        roller=roller,
        pool=_task_pool(profile, inputs.curriculum),
        judge=lambda: dev_exact_match(dev_roller, dev_tasks),
    )
    store = CheckpointStore(work_dir(output_dir), json_digest(provenance.model_dump()))
    loop = GrpoLoop(profile, parts, store)
    loop.run(tracker)
    rate = roller.total_tokens / roller.seconds if roller.seconds else 0.0
    with publishing(output_dir, provenance) as draft:
        save_policy(policy, draft.path / "policy")
        write_history(draft.path / "history.parquet", loop.history, HISTORY_COLUMNS)
        draft.rows["trajectories"] = write_trajectories(
            draft.path / "trajectories.parquet", loop.last_step
        )
        (draft.path / "run.json").write_text(
            json.dumps({"rollout_tokens_per_s": rate, "best_step": loop.best_step})
        )
    tracker.metrics({"rollout_tokens_per_s": rate})
    return draft.published


def _task_pool(profile: Profile, curriculum: Path) -> TaskPool:
    """The pool as the filter left it: every candidate with its measured pass rate."""
    pool = TaskPool(read_tasks(curriculum / "tasks.jsonl"), profile.curriculum)
    for row in pq.read_table(curriculum / "pass_rates.parquet").to_pylist():
        pool.observe(row["task_id"], attempts=row["attempts"], successes=row["successes"])
    pool.refresh()
    return pool

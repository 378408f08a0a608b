"""warm_start: masked SFT of the base policy on the teacher's trajectories.

Enters: knowledge (its dev view), accepted tasks, trajectories and negatives, the base policy.
Leaves: policy/ with the best weights by dev EM, history.parquet, run.json with the throughput.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

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
from espalier.environments import grammar_of, opened_environments
from espalier.policy.loading import Policy, load_policy, save_policy
from espalier.policy.rendering import Rendering
from espalier.rollout.roller import Roller
from espalier.rollout.trajectory import read_trajectories
from espalier.tasks import read_agent_texts, read_tasks
from espalier.training.checkpoint import CheckpointStore
from espalier.training.demonstrations import encode_demonstration, encode_negative
from espalier.training.dev_score import dev_exact_match
from espalier.training.epoch_order import EpochOrder
from espalier.training.hardware import Hardware
from espalier.training.history import write_history
from espalier.training.packing import TrainingSequence
from espalier.training.supervised import HISTORY_COLUMNS, SupervisedLoop, SupervisedPlan


class Inputs(NamedTuple):
    """Artifact directories that the stage reads."""

    knowledge: Path
    accepted: Path
    base_policy: Path


def run(profile: Profile, inputs: Inputs, output_dir: Path, tracker: Tracker) -> Manifest:
    """Train, keep the weights that answer most dev questions, publish them."""
    manifests = {name: open_artifact(path) for name, path in inputs._asdict().items()}
    provenance = Provenance(
        producer="warm_start",
        config_digest=profile.stage_digest("warm_start"),
        seed=profile.seed,
        inputs={name: manifest.content for name, manifest in manifests.items()},
    )
    policy = load_policy(inputs.base_policy / "policy")
    sequences = _sequences(profile, inputs, policy)
    dev_tasks = read_tasks(inputs.accepted / "tasks" / "dev.jsonl")
    judged = dev_tasks[: profile.warm_start.dev_questions]
    store = CheckpointStore(work_dir(output_dir), json_digest(provenance.model_dump()))
    with opened_environments(profile, inputs.knowledge) as environments_over:
        roller = Roller.local(policy, environments_over("dev"), profile)
        plan = _plan(profile, sequences, lambda: dev_exact_match(roller, judged))
        result = SupervisedLoop(policy.model, plan, store).run(tracker)
    with publishing(output_dir, provenance) as draft:
        save_policy(policy, draft.path / "policy")
        write_history(draft.path / "history.parquet", result.history, HISTORY_COLUMNS)
        (draft.path / "run.json").write_text(
            json.dumps({"sft_tokens_per_s": result.tokens_per_s, "best_step": result.best_step})
        )
        draft.rows["trajectories"] = len(sequences)
    tracker.metrics({"sft_tokens_per_s": result.tokens_per_s})
    return draft.published


def _sequences(profile: Profile, inputs: Inputs, policy: Policy) -> list[TrainingSequence]:
    tasks = {task.task_id: task for task in read_tasks(inputs.accepted / "tasks" / "train.jsonl")}
    rendering = Rendering(policy.tokenizer, grammar_of(profile))
    trajectories = read_trajectories(inputs.accepted / "trajectories.parquet")
    negatives = read_agent_texts(inputs.accepted / "negatives.jsonl")
    encoded = [encode_negative(negative, rendering) for negative in negatives]
    return [
        *(encode_demonstration(t, tasks, rendering) for t in trajectories),
        *(s for s in encoded if len(s.token_ids) <= profile.episode.max_tokens),
    ]


def _plan(
    profile: Profile, sequences: Sequence[TrainingSequence], judge: Callable[[], float]
) -> SupervisedPlan:
    config = profile.warm_start
    return SupervisedPlan(
        name="warm start",
        sequences_at=EpochOrder(sequences, config.trajectories_per_step, profile.seed).at,
        steps=config.steps,
        optimizer=config.optimizer,
        row_tokens=profile.episode.max_tokens,
        micro_batch_tokens=profile.training.micro_batch_tokens,
        checkpoint_every=config.evaluate_every,
        hardware=Hardware.chosen(profile.training),
        judge=judge,
    )

"""warm_start: masked SFT of the base policy on the teacher's trajectories.

Enters: knowledge (its dev view), accepted tasks, trajectories and negatives, the base policy.
Leaves: policy/ with the best weights by dev EM, history.parquet, run.json with the throughput.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from espalier.chain import opened, provenance
from espalier.config import Profile
from espalier.dialects.dialect import Dialect
from espalier.environments import family_of, policy_dialect
from espalier.policy.loading import Policy, load_policy, save_policy
from espalier.records import (
    Manifest,
    Task,
    Tracker,
    json_digest,
    publishing,
    read_agent_texts,
    read_tasks,
    work_dir,
)
from espalier.records.trajectory import read_trajectories
from espalier.rollout.roller import Roller
from espalier.training.checkpoint import CheckpointStore, write_history
from espalier.training.demonstrations import encode_demonstration, encode_negative
from espalier.training.hardware import Hardware
from espalier.training.packing import TrainingSequence
from espalier.training.supervised import (
    HISTORY_COLUMNS,
    DevScore,
    EpochOrder,
    SupervisedLoop,
    SupervisedPlan,
    dev_exact_match,
)


def run(
    profile: Profile, inputs: Mapping[str, Path], output_dir: Path, tracker: Tracker
) -> Manifest:
    """Train, keep the weights that answer most dev questions, publish them."""
    manifests = opened(inputs)
    origin = provenance("warm_start", profile, manifests)
    policy = load_policy(inputs["pretrained_policy"] / "policy")
    sequences = _sequences(profile, inputs, policy)
    dev_tasks = read_tasks(inputs["accepted"] / "tasks" / "dev.jsonl")
    judged = dev_tasks[: profile.warm_start.dev_questions]
    store = CheckpointStore(work_dir(output_dir), json_digest(origin.model_dump()))
    with family_of(profile).environments(inputs["knowledge"]) as environments_over:
        roller = Roller.local(policy, environments_over("dev"), profile)
        plan = _plan(profile, sequences, lambda: dev_exact_match(roller, judged))
        result = SupervisedLoop(policy.model, plan, store).run(tracker)
    with publishing(output_dir, origin) as draft:
        save_policy(policy, draft.path / "policy")
        write_history(draft.path / "history.parquet", result.history, HISTORY_COLUMNS)
        (draft.path / "run.json").write_text(
            json.dumps({"sft_tokens_per_s": result.tokens_per_s, "best_step": result.best_step})
        )
        draft.rows["trajectories"] = len(sequences)
    tracker.metrics({"sft_tokens_per_s": result.tokens_per_s})
    return draft.published


def _sequences(
    profile: Profile, inputs: Mapping[str, Path], policy: Policy
) -> list[TrainingSequence]:
    tasks = {
        task.task_id: task for task in read_tasks(inputs["accepted"] / "tasks" / "train.jsonl")
    }
    family = family_of(profile)
    dialect = policy_dialect(family, policy.tokenizer)
    trajectories = read_trajectories(inputs["accepted"] / "trajectories.parquet")
    negatives = read_agent_texts(inputs["accepted"] / "negatives.jsonl")

    def dialect_of(task: Task) -> Dialect:
        return dialect.with_tools(family.specs_of(task))

    encoded = [encode_negative(negative, dialect) for negative in negatives]
    return [
        *(encode_demonstration(t, tasks, dialect_of) for t in trajectories),
        *(s for s in encoded if len(s.token_ids) <= profile.episode.max_tokens),
    ]


def _plan(
    profile: Profile, sequences: Sequence[TrainingSequence], dev_score: Callable[[], DevScore]
) -> SupervisedPlan:
    config = profile.warm_start
    return SupervisedPlan(
        name="warm start",
        sequences_at=EpochOrder(sequences, config.trajectories_per_step, profile.seed).at,
        steps=config.steps,
        optimizer=config.optimizer,
        row_tokens=profile.episode.max_tokens,
        micro_batch_tokens=profile.hardware.micro_batch_tokens,
        checkpoint_every=config.evaluate_every,
        hardware=Hardware.from_config(profile.hardware),
        dev_score=dev_score,
    )

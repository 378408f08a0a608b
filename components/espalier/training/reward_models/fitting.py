"""`espalier reward-model`: labels attempts of a warm policy and fits a head to the labels.

Inputs: knowledge, accepted training and dev tasks, the warm policy of a run.
Outputs: policy/ and head.safetensors, the body and the head; labels.parquet, the labelled steps;
history.parquet, the loss of each step; run.json, its agreement with the rule on dev attempts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from espalier.config import Profile
from espalier.environments.memory import remembering
from espalier.policy.hardware import Hardware
from espalier.policy.loading import Policy, load_policy_for_sampling
from espalier.records import (
    DataError,
    Draft,
    Manifest,
    Provenance,
    Task,
    Tracker,
    expect_replaceable,
    open_artifact,
    publishing,
    read_tasks,
)
from espalier.records.trajectory import Trajectory
from espalier.rollout.roller import Roller
from espalier.training.parallel import Processes
from espalier.training.reward_models.head import Kind, RewardModel, outcome_figures
from espalier.training.reward_models.labels import LabelledAttempt, label_outcomes, label_steps
from espalier.training.rl.models import Critic, build_layout

INPUTS = ("knowledge", "accepted", "warm_policy")
"""Artifact folders of a run that this reads."""


class _Material(NamedTuple):
    labelled: list[LabelledAttempt]
    dev: list[Trajectory]


def fit_reward_model(
    profile: Profile, inputs: Mapping[str, Path], output_dir: Path, kind: Kind, tracker: Tracker
) -> Manifest:
    """Label attempts of the warm policy, fit a head, test it on dev attempts, publish it.

    Args:
        profile: profile of the run; its section `reward_model` sets this stage.
        inputs: artifact folders by the names in `INPUTS`.
        output_dir: folder of the artifact.
        kind: "process" labels every step by completions, "outcome" the last one by the rule.
        tracker: receives the figures.

    Raises:
        ArtifactError: an input is missing or damaged.
        DataError: all labels are equal, so that there is nothing to learn.
    """
    expect_replaceable(output_dir)
    manifests = {name: open_artifact(path) for name, path in inputs.items()}
    origin = Provenance(
        producer=f"reward-model-{kind}",
        config_digest=profile.digest(("reward_model", "environment", "episode", "rollout")),
        seed=profile.seed,
        inputs={name: manifest.content for name, manifest in manifests.items()},
    )
    policy = load_policy_for_sampling(inputs["warm_policy"] / "policy", profile.hardware)
    material = _sampled(profile, inputs, policy, kind)
    targets = {t for one in material.labelled for t in one.targets(profile.reward_model.labels)}
    if len(targets) < 2:
        raise DataError(
            f"reward model: all {len(material.labelled)} attempts are labelled {targets or 'none'};"
            " a head needs both right and wrong ones. Attempt more tasks (reward_model.tasks), or "
            "others"
        )
    hardware = Hardware.from_config(profile.hardware)
    layout = build_layout(policy.model, profile, hardware, Processes())
    model = RewardModel(kind, Critic(hardware.place(policy.model)), layout)
    losses = model.fit(material.labelled, profile.reward_model, profile.seed, tracker)
    figures = outcome_figures(model, material.dev)
    with publishing(output_dir, origin) as draft:
        model.save(policy, draft.path)
        _write(draft, material, losses, figures)
    tracker.metrics(figures)
    return draft.published


def _sampled(profile: Profile, inputs: Mapping[str, Path], policy: Policy, kind: Kind) -> _Material:
    config, temperature = profile.reward_model, profile.training.temperature
    rng = random.Random(f"reward model:{profile.seed}")
    tasks = _some(inputs["accepted"] / "tasks" / "train.jsonl", config.tasks, rng)
    dev_tasks = _some(inputs["accepted"] / "tasks" / "dev.jsonl", config.dev_tasks, rng)
    family = remembering(profile, inputs["accepted"])
    with family.environments(inputs["knowledge"]) as environments_over:
        roller = Roller.local(policy, environments_over("train"), profile)
        attempts = roller.roll_out(
            tasks, samples=config.attempts, temperature=temperature, seed=rng.getrandbits(48)
        )
        labelled = label_outcomes(attempts)
        if kind == "process":
            labelled = label_steps(
                attempts,
                {task.task_id: task for task in tasks},
                roller,
                completions=config.completions,
                temperature=temperature,
                seed=rng.getrandbits(48),
            )
        dev_roller = Roller.local(policy, environments_over("dev"), profile)
        dev = dev_roller.roll_out(
            dev_tasks, samples=config.attempts, temperature=temperature, seed=rng.getrandbits(48)
        )
    return _Material(labelled, dev)


def _some(path: Path, count: int, rng: random.Random) -> list[Task]:
    tasks = read_tasks(path)
    return rng.sample(tasks, min(count, len(tasks)))


def _write(
    draft: Draft, material: _Material, losses: list[float], figures: Mapping[str, float]
) -> None:
    labels = [
        {"task_id": one.trajectory.task_id, "attempt": number, "turn": turn, "share": share}
        for number, one in enumerate(material.labelled)
        for turn, share in zip(one.turns, one.shares, strict=True)
    ]
    pq.write_table(pa.Table.from_pylist(labels), draft.path / "labels.parquet")
    history = [{"step": step, "loss": loss} for step, loss in enumerate(losses, start=1)]
    pq.write_table(pa.Table.from_pylist(history), draft.path / "history.parquet")
    (draft.path / "run.json").write_text(json.dumps(dict(figures)) + "\n", encoding="utf-8")
    draft.rows |= {"labels": len(labels), "attempts": len(material.labelled)}

"""This project's trainers: the supervised loop, and the policy update of GRPO."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from transformers import PreTrainedModel

from espalier.config import LoraConfig, OptimizerConfig, Profile
from espalier.policy.hardware import Hardware
from espalier.policy.loading import load_policy
from espalier.policy.lora import add_adapter
from espalier.records import Message, NullTracker
from espalier.records.trajectory import FinishReason, Trajectory, Turn
from espalier.training.checkpoint import CheckpointStore
from espalier.training.packing import TrainingSequence
from espalier.training.parallel import Processes
from espalier.training.rl.models import build_layout, build_models
from espalier.training.rl.rows import Group, dense_rows
from espalier.training.rl.update import PolicyUpdate, StepContext
from espalier.training.scoring import ScoreRequest
from espalier.training.supervised import SupervisedLoop, SupervisedPlan
from tests.benchmarks.training.material import Attempt, Material, read_material
from tests.benchmarks.training.metering import Meter, Throughput, options_of, write_throughput

ROW_TOKENS = 512
CPU = Hardware(torch.device("cpu"), None)


def main() -> None:
    """Train and report."""
    options = options_of(argparse.ArgumentParser(description=__doc__))
    material = read_material(options.material)
    torch.set_num_threads(material.threads)
    torch.manual_seed(0)
    train = {"espalier-sft": supervised, "espalier-grpo": updates}[options.trainer]
    write_throughput(options.out, train(material))


def supervised(material: Material) -> Throughput:
    """SFT on the actions; judging and checkpoints are not timed."""
    model = load_policy(Path(material.policy_dir)).model
    meter = Meter(model.get_input_embeddings())
    sequences = [
        TrainingSequence(token_ids=tuple(a.token_ids), loss_mask=tuple(a.action_mask))
        for a in material.attempts
    ]

    def loop(steps: int, folder: str) -> SupervisedLoop:
        plan = SupervisedPlan(
            name=folder,
            sequences_at=lambda step: batch_at(sequences, step, material.sft_batch),
            steps=steps,
            optimizer=OptimizerConfig(),
            row_tokens=ROW_TOKENS,
            micro_batch_tokens=material.micro_batch_tokens,
            checkpoint_every=steps,
            hardware=CPU,
        )
        return SupervisedLoop(model, plan, CheckpointStore(Path(scratch) / folder, folder))

    with tempfile.TemporaryDirectory() as scratch:
        loop(material.warm_steps, "warm").run(NullTracker())
        meter.start()
        result = loop(material.steps, "timed").run(NullTracker())
    measured = meter.throughput("espalier-sft", result.tokens)
    measured.wall_s = result.seconds
    return measured


def batch_at(items: list[TrainingSequence], step: int, size: int) -> list[TrainingSequence]:
    """The `size` items of a step, round and round."""
    return [items[(step * size + n) % len(items)] for n in range(size)]


def updates(material: Material) -> Throughput:
    """One optimizer update on all trajectories a step, as on-policy GRPO does."""
    longest = max(len(attempt.token_ids) for attempt in material.attempts)
    row_tokens = max(ROW_TOKENS, longest)
    profile = Profile.model_validate(
        {
            "episode": {"max_tokens": row_tokens},
            "curriculum": {"enabled": False},
            "training": {
                "minibatches": 1,
                "tasks_per_step": len(material.attempts) // material.group_size,
                "group_size": material.group_size,
            },
            "hardware": {
                "micro_batch_tokens": material.micro_batch_tokens,
                "activation_checkpointing": material.activation_checkpointing,
                "device": "cpu",
            },
        }
    )
    model = load_policy(Path(material.policy_dir)).model
    if material.lora is not None:
        add_adapter(model, LoraConfig.model_validate(material.lora), seed=0)
    hardware = CPU._replace(checkpoints_activations=material.activation_checkpointing)
    meter = timed_updates(model, profile, hardware, material)
    tokens = material.steps * sum(len(attempt.token_ids) for attempt in material.attempts)
    return meter.throughput("espalier-grpo", tokens)


def timed_updates(
    model: PreTrainedModel, profile: Profile, hardware: Hardware, material: Material
) -> Meter:
    """Updates on all trajectories, `warm_steps` times and then `steps` times on the clock."""
    meter = Meter(model.get_input_embeddings())
    processes = Processes()
    update = PolicyUpdate(
        build_models(model, profile.training, hardware, processes),
        profile.training,
        build_layout(model, profile, hardware, processes),
        max_action_tokens=profile.episode.max_tokens,
    )
    rows = dense_rows(groups_of(material), with_observations=False)
    units = [(row,) for row in range(len(rows))]
    for step in range(material.warm_steps + material.steps):
        if step == material.warm_steps:
            meter.start()
        update.apply(rows, units, StepContext(step, ScoreRequest(entropy=True)))
        if hardware.device.type != "cpu":
            torch.accelerator.synchronize()
    meter.pause()
    return meter


def groups_of(material: Material) -> list[Group]:
    """The trajectories as a roller returns them."""
    size = material.group_size
    found = [trajectory_of(n // size, attempt) for n, attempt in enumerate(material.attempts)]
    return [
        Group(trajectories=tuple(found[start : start + size]))
        for start in range(0, len(found), size)
    ]


def trajectory_of(group: int, attempt: Attempt) -> Trajectory:
    """One attempt; log-probs are those of a uniform policy, which changes no amount of work."""
    return Trajectory(
        task_id=str(group),
        group_id=str(group),
        messages=(Message(role="user", content="?"),),
        tool_results=(),
        reward={"outcome": attempt.reward},
        answer=None,
        finish_reason=FinishReason.ANSWERED,
        policy_version=0,
        token_ids=tuple(attempt.token_ids),
        action_mask=tuple(attempt.action_mask),
        behavior_logprobs=tuple(-7.6 * on for on in attempt.action_mask),
        turns=tuple(
            Turn(action_start=start, action_end=end, observation_end=seen)
            for start, end, seen in attempt.spans
        ),
    )


if __name__ == "__main__":
    main()

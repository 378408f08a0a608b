"""The models of a run: the policy that is trained, and what its algorithm needs beside it."""

from __future__ import annotations

import copy

from transformers import PreTrainedModel

from espalier.config import Profile, TrainingConfig
from espalier.training.hardware import Hardware
from espalier.training.packing import convolution_reach
from espalier.training.parallel import Processes
from espalier.training.rl.assessment import Models
from espalier.training.rl.critic import Critic
from espalier.training.rl.dense_scoring import Layout
from espalier.training.scoring import Scorer
from espalier.training.sharding import shard


def trainable(
    sampling: PreTrainedModel,
    config: TrainingConfig,
    hardware: Hardware,
    processes: Processes,
) -> Models:
    """The models to train with, as the algorithm needs them.

    Args:
        sampling: the policy that the roller samples from. On the same device it is trained itself;
            elsewhere, or split over processes, a copy is, whose weights are to be copied back.
        config: says which algorithm.
        hardware: where to train.
        processes: share the work, and a sharded model.
    """
    algorithm = config.algorithm
    policy = copy.deepcopy(sampling) if config.sharded else sampling
    policy = hardware.placed(policy)
    critic = Critic(policy) if algorithm.critic else None
    reference = None
    if algorithm.needs_reference:
        frozen = copy.deepcopy(policy).eval().requires_grad_(requires_grad=False)
        reference = Scorer(frozen)
    models = Models(policy=Scorer(policy), reference=reference, critic=critic)
    if config.sharded:
        for model in (models.policy, models.reference, models.critic):
            if model is not None:
                shard(model, processes, hardware.device)
    return models


def layout_for(
    policy: PreTrainedModel, profile: Profile, hardware: Hardware, processes: Processes
) -> Layout:
    """How trajectories of `profile`'s episodes are packed for `policy`."""
    return Layout(
        hardware=hardware,
        processes=processes,
        row_tokens=profile.episode.max_tokens,
        gap=convolution_reach(policy),
        micro_batch_tokens=profile.hardware.micro_batch_tokens,
    )

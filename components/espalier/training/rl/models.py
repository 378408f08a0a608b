"""The models of a run (policy, reference, critic) and scoring rows with them, without gradient.

Axes: B trajectories, T token columns, N scored tokens of a micro-batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from espalier.algorithms.masking import row_means
from espalier.config import Profile, TrainingConfig
from espalier.policy.hardware import Hardware
from espalier.policy.lora import adapter_off, has_adapter
from espalier.records.trajectory import Trajectory
from espalier.training.packing import TrainingSequence, convolution_reach, pack
from espalier.training.parallel import Processes, shard
from espalier.training.prefix_tree import prefix_tree_of
from espalier.training.rl.rows import (
    Group,
    Unit,
    dense_rows,
    micro_batches,
    rows_of,
    tree_micro_batches,
)
from espalier.training.scoring import Batch, Scorer, ScoreRequest, Scores, hidden_before
from espalier.training.tree_forward import forwards_trees


class BaseScorer(Scorer):
    """The base model of a policy with an adapter: the same weights, with the adapter off."""

    def forward(self, batch: Batch, request: ScoreRequest) -> Scores:
        """Score the batch's tokens, as `Scorer` does."""
        was_training = self.model.training
        self.model.eval()
        with adapter_off(self.model):
            found = super().forward(batch, request)
        self.model.train(was_training)
        return found


class Critic(nn.Module):
    """A transformer without its vocabulary, and a linear head."""

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        # weights that an adapter does not change are held once
        shared = {id(p): p for p in policy.parameters() if not p.requires_grad}
        self.body = copy.deepcopy(policy.base_model, dict(shared))
        width = int(policy.config.hidden_size)
        self.head = nn.Linear(width, 1, device=policy.device, dtype=policy.dtype)
        # the first values are 0: noise would pass into the advantages
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch) -> Tensor:
        """Return [N], reward units: the value before each scored token."""
        hidden_NH = hidden_before(self.body, batch)
        with torch.autocast(hidden_NH.device.type, enabled=False):
            values_N1 = self.head(hidden_NH.to(self.head.weight.dtype))
        return values_N1.sum(dim=1)  # no squeeze: a sharded module must not return a view


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How rows are laid out in micro-batches, on which device, and for which processes."""

    hardware: Hardware
    processes: Processes
    row_tokens: int
    gap: int
    """Number of masked tokens between the sequences of a row, as in `packing`."""
    micro_batch_tokens: int
    prefix_tree: bool = False
    """Whether a micro-batch is a tree of prefixes; otherwise it is rows of packed sequences."""

    @property
    def name(self) -> str:
        """How the updates forward trajectories: a value of `training.layout`."""
        return "prefix_tree" if self.prefix_tree else "packed"

    def micro_batches(
        self, units: Sequence[Unit], sequences: Sequence[TrainingSequence]
    ) -> list[list[Unit]]:
        """Cut `units` into runs that are forwarded at once.

        Args:
            units: units of one minibatch.
            sequences: all rows of the step.
        """
        if self.prefix_tree:
            return tree_micro_batches(units, sequences, max_nodes=self.micro_batch_tokens)
        lengths = [len(sequence.token_ids) for sequence in sequences]
        return micro_batches(units, lengths, max_tokens=self.micro_batch_tokens)

    def batch(self, sequences: Sequence[TrainingSequence]) -> Batch:
        """Lay out `sequences` as one micro-batch, packed rows or a prefix tree, on the device."""
        if self.prefix_tree:
            return prefix_tree_of(sequences).to(self.hardware.device)
        batch = pack(sequences, row_tokens=self.row_tokens, gap=self.gap)
        return batch.to(self.hardware.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The models that score rows."""

    policy: Scorer
    reference: Scorer | None = None
    """A frozen model, for a KL penalty or a loss that compares with it."""
    critic: Critic | None = None


def dense_scores(
    sequences: Sequence[TrainingSequence],
    score: Callable[[Batch], Sequence[Tensor]],
    layout: Layout,
    *,
    figures: int = 1,
) -> list[Tensor]:
    """Return the values of `score` for every scored token, [B, T] each, on the CPU; 0 elsewhere.

    Args:
        sequences: all rows of the step.
        score: returns `figures` tensors for a micro-batch's tokens, [N] each.
        layout: its processes share the micro-batches, and each of them gets all rows.
        figures: how many tensors `score` returns.
    """
    width = max(len(sequence.token_ids) for sequence in sequences)
    runs = layout.micro_batches([(row,) for row in range(len(sequences))], sequences)
    dense = [torch.zeros(len(sequences), width) for _ in range(figures)]
    with torch.no_grad(), layout.hardware.precision():
        for run, weight in layout.processes.share(runs):
            rows = rows_of(run)
            batch = layout.batch([sequences[row] for row in rows])
            for values_BT, values_N in zip(dense, score(batch), strict=True):
                scored_BT = batch.dense(values_N.float() * weight, width=width)
                values_BT[rows] += scored_BT.cpu()
    layout.processes.sum(dense)
    return dense


def build_models(
    sampling: PreTrainedModel,
    config: TrainingConfig,
    hardware: Hardware,
    processes: Processes,
) -> Models:
    """Build the models that the algorithm needs.

    Args:
        sampling: the policy that the roller samples from. On the same device this model itself is
            trained. On another one, or sharded, a copy is trained, and the publisher copies its
            weights back.
        config: sets the algorithm.
        hardware: where to train.
        processes: the processes that share the work and the shards.
    """
    algorithm = config.algorithm
    policy = copy.deepcopy(sampling) if config.sharded else sampling
    policy = hardware.place(policy)
    critic = Critic(policy) if algorithm.critic else None
    reference = None
    if algorithm.needs_reference:
        if has_adapter(policy):
            reference = BaseScorer(policy)
        else:
            frozen = copy.deepcopy(policy).eval().requires_grad_(requires_grad=False)
            reference = Scorer(frozen)
    models = Models(policy=Scorer(policy), reference=reference, critic=critic)
    if config.sharded:
        for model in (models.policy, models.reference, models.critic):
            if model is not None:
                shard(model, processes, hardware.device)
    return models


def build_layout(
    policy: PreTrainedModel, profile: Profile, hardware: Hardware, processes: Processes
) -> Layout:
    """Return how trajectories of the profile's episodes are laid out for `policy`.

    They are a tree of prefixes if `training.layout` says so, `tree_forward` knows the policy's
    architecture, and no other process shares the rows, as each would forward the same prompts.
    Otherwise they are packed.
    """
    asked = profile.training.layout == "prefix_tree"
    return Layout(
        hardware=hardware,
        processes=processes,
        row_tokens=profile.episode.max_tokens,
        gap=convolution_reach(policy),
        micro_batch_tokens=profile.hardware.micro_batch_tokens,
        prefix_tree=asked and processes.count == 1 and forwards_trees(policy),
    )


def perplexities(
    trajectories: Sequence[Trajectory],
    policy: Scorer,
    layout: Layout,
    request: ScoreRequest,
) -> list[float]:
    """Return the perplexity of each trajectory's action tokens under `policy`; 1 is certain."""
    group = Group(trajectories=tuple(trajectories))
    rows = dense_rows([group], with_observations=False)
    [logprobs_BT] = dense_scores(
        rows.sequences, lambda batch: [policy(batch, request).logprobs_N], layout
    )
    return (-row_means(logprobs_BT, rows.action_mask_BT)).exp().tolist()


def initial_values(trajectories: Sequence[Trajectory], critic: Critic, layout: Layout) -> Tensor:
    """Return V(s0), the critic's value of each trajectory before its first action.

    Args:
        trajectories: B of them, each with an action.
        critic: with its current weights.
        layout: how its rows are packed.

    Returns:
        [B] reward units, on the CPU.
    """
    rows = dense_rows([Group(trajectories=tuple(trajectories))], with_observations=False)
    [values_BT] = dense_scores(rows.sequences, lambda batch: [critic(batch)], layout)
    first_B1 = rows.action_mask_BT.int().argmax(dim=1, keepdim=True)
    return values_BT.gather(1, first_B1)[:, 0]

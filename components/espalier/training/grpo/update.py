"""One GRPO update: groups of trajectories in, an optimizer step (or several) out."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from espalier.config import TrainingConfig
from espalier.rollout.trajectory import Trajectory
from espalier.training.advantages import grpo_advantages
from espalier.training.losses import asymmetric_clip, k3_kl
from espalier.training.optimization import Updater
from espalier.training.packing import TrainingSequence, convolution_reach, micro_batches, pack
from espalier.training.scoring import score


@dataclass(slots=True)
class UpdateFigures:
    """Means over the scored tokens of an update; `mismatch_kl` over its first minibatch only."""

    loss: float = 0.0
    entropy: float = 0.0
    clipped_share: float = 0.0
    grad_norm: float = 0.0
    mismatch_kl: float = 0.0


class PolicyUpdate:
    """Turns groups into gradient; holds the model, its optimizer and the reference."""

    def __init__(
        self,
        model: PreTrainedModel,
        reference: PreTrainedModel | None,
        config: TrainingConfig,
        *,
        row_tokens: int,
    ) -> None:
        self._model = model
        self._reference = reference
        self._config = config
        self._row_tokens = row_tokens
        self._gap = convolution_reach(model)
        self.updater = Updater(model, config.optimizer, max(1, config.steps))

    def apply(self, groups: Sequence[Sequence[Trajectory]], step: int) -> UpdateFigures:
        """Run the step's minibatches over `groups` (each of one task, all of equal size)."""
        sequences = training_sequences(groups, with_observations=self._config.train_on_observations)
        random.Random(f"minibatch:{step}").shuffle(sequences)
        figures = UpdateFigures()
        share = -(-len(sequences) // self._config.minibatches)
        parts = [sequences[i : i + share] for i in range(0, len(sequences), share)]
        for number, part in enumerate(parts):
            # like lengths share rows, so that less of them is padding
            part.sort(key=lambda s: len(s.token_ids))
            self._minibatch(part, figures, first=number == 0)
            figures.grad_norm += self.updater.apply(step) / len(parts)
        for name in ("loss", "entropy", "clipped_share"):
            setattr(figures, name, getattr(figures, name) / len(parts))
        return figures

    def _minibatch(
        self, sequences: Sequence[TrainingSequence], figures: UpdateFigures, *, first: bool
    ) -> None:
        config = self._config
        scored_total = sum(sum(s.loss_mask[1:]) for s in sequences)
        self._model.train()
        for part in micro_batches(sequences, max_tokens=config.micro_batch_tokens):
            batch = pack(part, row_tokens=self._row_tokens, gap=self._gap)
            scores = score(self._model, batch, temperature=config.temperature)
            own_N = scores.logprobs_N.detach()
            behavior_N = batch.behavior_logprobs_N
            behavior_N = torch.where(behavior_N.isnan(), own_N, behavior_N)
            clipped = asymmetric_clip(
                scores.logprobs_N,
                behavior_N,
                batch.advantages_N,
                clip_low=config.clip_low,
                clip_high=config.clip_high,
            )
            loss = clipped.loss_N.sum() / scored_total
            if self._reference is not None:
                with torch.no_grad():
                    reference = score(self._reference, batch, temperature=config.temperature)
                penalty_N = k3_kl(scores.logprobs_N, reference.logprobs_N)
                loss = loss + config.kl_coefficient * penalty_N.sum() / scored_total
            loss.backward()
            with torch.no_grad():
                figures.loss += float(loss.detach())
                figures.entropy += float(scores.entropy_N.sum()) / scored_total
                figures.clipped_share += float(clipped.clipped_N.sum()) / scored_total
                if first:
                    gap_N = k3_kl(behavior_N, scores.logprobs_N)
                    figures.mismatch_kl += float(gap_N.sum()) / scored_total
        self._model.eval()


def training_sequences(
    groups: Sequence[Sequence[Trajectory]], *, with_observations: bool
) -> list[TrainingSequence]:
    """Trajectories with their group-relative advantages.

    `with_observations` is the ablation that leaves the tool's tokens in the loss, as a trainer
    without an action mask does. The engine never scored them: their behaviour log-prob is NaN, and
    the update takes its own, so that their ratio is 1.
    """
    rewards_PG = torch.tensor([[t.total_reward for t in group] for group in groups])
    advantages_PG = grpo_advantages(rewards_PG)
    sequences = []
    for group, advantages_G in zip(groups, advantages_PG.tolist(), strict=True):
        for trajectory, advantage in zip(group, advantages_G, strict=True):
            sequences.append(_sequence(trajectory, advantage, with_observations=with_observations))
    return sequences


def _sequence(
    trajectory: Trajectory, advantage: float, *, with_observations: bool
) -> TrainingSequence:
    mask = trajectory.action_mask
    if with_observations:
        first_action = mask.index(1) if 1 in mask else len(mask)
        mask = tuple(int(t >= first_action) for t in range(len(mask)))
    logprobs = zip(trajectory.behavior_logprobs, trajectory.action_mask, strict=True)
    return TrainingSequence(
        token_ids=trajectory.token_ids,
        loss_mask=mask,
        behavior_logprobs=tuple(value if sampled else math.nan for value, sampled in logprobs),
        advantage=advantage,
    )

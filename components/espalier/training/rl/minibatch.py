"""One minibatch: some rows of a step, with what was assessed about them, as the losses see it.

Axes: B rows of the step, b rows of a micro-batch, T token columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from espalier.algorithms.batch import LossBatch, Totals
from espalier.records import DataError
from espalier.training.rl.assessment import Assessment
from espalier.training.rl.minibatches import Unit, rows_of
from espalier.training.rl.rows import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Minibatch:
    """What one optimizer update is made of."""

    rows: Rows
    assessment: Assessment
    units: Sequence[Unit]
    totals: Totals
    draws_BT: Tensor | None = None
    """Uniform numbers, for losses that choose tokens at random."""

    def loss_batch(
        self, units: Sequence[Unit], policy_logprobs_bT: Tensor, entropy_bT: Tensor
    ) -> LossBatch:
        """The rows of `units` as the losses see them, on the device of the scores.

        Args:
            units: of this minibatch.
            policy_logprobs_bT: their rows' scores; may be narrower than the step's rows.
            entropy_bT: likewise.
        """
        rows = rows_of(units)
        width, device = policy_logprobs_bT.shape[1], policy_logprobs_bT.device
        assessed = self.assessment

        def of_rows(values_BT: Tensor) -> Tensor:
            return values_BT[rows, :width].to(device)

        optional = {
            "reference_logprobs_BT": assessed.reference_logprobs_BT,
            "importance_weights_BT": assessed.weights_BT,
            "draws_BT": self.draws_BT,
        }
        own_bT = policy_logprobs_bT.detach()
        proximal_bT = of_rows(assessed.proximal_logprobs_BT)
        behavior_bT = of_rows(self.rows.behavior_logprobs_BT)
        pairs = [unit for unit in units if len(unit) == 2]
        return LossBatch(
            policy_logprobs_BT=policy_logprobs_bT,
            # what no engine sampled (the ablation's observations) has a ratio of 1
            proximal_logprobs_BT=own_bT.where(proximal_bT.isnan(), proximal_bT),
            behavior_logprobs_BT=own_bT.where(behavior_bT.isnan(), behavior_bT),
            advantages_BT=of_rows(assessed.credit.advantages_BT),
            loss_mask_BT=of_rows(assessed.loss_mask_BT),
            totals=self.totals,
            entropy_BT=entropy_bT,
            pairs_P2=torch.arange(2 * len(pairs), device=device).view(-1, 2) if pairs else None,
            **{name: of_rows(value) for name, value in optional.items() if value is not None},
        )


def observed_share(rows: Rows, loss_mask_BT: Tensor) -> float:
    """Share of the loss's tokens that the environment wrote."""
    return float((loss_mask_BT & rows.observed_BT).sum()) / max(1.0, float(loss_mask_BT.sum()))


def check_no_observation_is_learned(rows: Rows, loss_mask_BT: Tensor) -> None:
    """Hold every batch to the rule that the gradient flows through sampled tokens alone.

    Raises:
        DataError: an observation stands in the loss. Masks and turns then disagree, or a span was
            tokenised again after sampling; training on would teach the policy to recite the tools.
    """
    leaking_B = (loss_mask_BT & rows.observed_BT).any(dim=1).nonzero().flatten()
    if len(leaking_B):
        share = observed_share(rows, loss_mask_BT)
        raise DataError(
            f"{share:.1%} of the loss's tokens are observations (first in trajectory "
            f"{int(leaking_B[0])} of the step): action masks and spans of turns disagree. Only "
            "training.train_on_observations = true, an ablation, trains on what tools say."
        )


Figures = dict[str, float]


def add_scaled(figures: Figures, more: Mapping[str, Tensor | float], scale: float) -> None:
    """Add `scale` times each figure of `more` to `figures`."""
    for name, value in more.items():
        figures[name] = figures.get(name, 0.0) + scale * float(value)


def mean_figures(updates: Sequence[Figures]) -> Figures:
    """The mean of each figure over the updates that have it; a skipped one has none."""
    counts = Counter(name for figures in updates for name in figures)
    means: Figures = {}
    for figures in updates:
        for name, value in figures.items():
            add_scaled(means, {name: value}, 1 / counts[name])
    return means

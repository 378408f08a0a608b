"""Computes the policy's gradient of a minibatch, in micro-batches whose sum is the whole gradient.

Axes: B rows of the step, b rows of a micro-batch, T token columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from espalier.algorithms import Algorithm
from espalier.algorithms.batch import LossBatch, Totals
from espalier.algorithms.masking import kept
from espalier.records import DataError
from espalier.records.step_figures import Per, step_figure
from espalier.training.rl.assessment import Assessment
from espalier.training.rl.models import Layout
from espalier.training.rl.rows import Rows, Unit, rows_of
from espalier.training.scoring import Scorer, ScoreRequest, Scores


@dataclass(frozen=True, kw_only=True)
class Minibatch:
    """The rows of one optimizer update, with their assessment."""

    rows: Rows
    assessment: Assessment
    units: Sequence[Unit]
    totals: Totals
    draws_BT: Tensor | None = None
    """Uniform numbers, for losses that choose tokens at random."""

    @cached_property
    def sizes(self) -> Mapping[Per, float]:
        """How much of each denominator is in this minibatch."""
        rows = rows_of(self.units)
        lengths_B = self.assessment.loss_mask_BT[rows].sum(dim=1)
        return {
            Per.ACTION_TOKEN: float(self.rows.action_mask_BT[rows].sum()),
            Per.LOSS_TOKEN: float(lengths_B.sum()),
            Per.SEQUENCE: float((lengths_B > 0).sum()),
            Per.PAIR: self.totals.pairs,
            Per.CRITIC_TOKEN: float(self.rows.loss_mask_BT[rows].sum()),
        }

    def mean_entropy(self, units: Sequence[Unit], entropy_bT: Tensor) -> Tensor:
        """Return the share of `units` in the minibatch's mean entropy per action token, nats."""
        width = entropy_bT.shape[1]
        sampled_bT = self.rows.action_mask_BT[rows_of(units), :width].to(entropy_bT.device)
        return kept(entropy_bT.detach(), sampled_bT).sum() / max(1.0, self.sizes[Per.ACTION_TOKEN])

    def loss_batch(
        self, units: Sequence[Unit], policy_logprobs_bT: Tensor, entropy_bT: Tensor
    ) -> LossBatch:
        """Build the losses' view of the rows of `units`, on the device of the scores.

        Args:
            units: units of this minibatch.
            policy_logprobs_bT: their rows' scores; may be narrower than the step's rows.
            entropy_bT: their rows' entropies, equally wide.
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
            # NaN marks tokens that no engine sampled (train_on_observations): their ratio is 1
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
    """Return the share of the tokens in the loss that are observations."""
    return float((loss_mask_BT & rows.observed_BT).sum()) / max(1.0, float(loss_mask_BT.sum()))


def check_no_observation_is_learned(rows: Rows, loss_mask_BT: Tensor) -> None:
    """Check that only sampled tokens are in the loss.

    Raises:
        DataError: an observation is in the loss: masks and turns disagree, or a span was tokenised
            again after sampling. Further training would teach the policy to recite tool results.
    """
    leaking_B = (loss_mask_BT & rows.observed_BT).any(dim=1).nonzero().flatten()
    if len(leaking_B):
        share = observed_share(rows, loss_mask_BT)
        raise DataError(
            f"{share:.1%} of the loss's tokens are observations (first in trajectory "
            f"{int(leaking_B[0])} of the step): action masks and spans of turns disagree. Only "
            "training.train_on_observations = true, an ablation, trains on tool results."
        )


Figures = dict[str, float]


def add_scaled(figures: Figures, more: Mapping[str, Tensor | float], scale: float) -> None:
    """Add `scale` times each figure of `more` to `figures`."""
    for name, value in more.items():
        figures[name] = figures.get(name, 0.0) + scale * float(value)


def mean_figures(updates: Sequence[Figures], sizes: Sequence[Mapping[Per, float]]) -> Figures:
    """Return the mean of each figure over the updates that have it; a skipped update has none.

    Minibatches differ in size: a figure per token, sequence or pair is the mean over those of all
    updates, any other the mean over the updates.

    Args:
        updates: the figures of each update.
        sizes: the denominators of each (`Minibatch.sizes`).
    """
    means: Figures = {}
    for name in dict.fromkeys(name for figures in updates for name in figures):
        known = step_figure(name)
        per = Per.UPDATE if known is None else known.per
        weighted = [
            (figures[name], size.get(per, 1.0))
            for figures, size in zip(updates, sizes, strict=True)
            if name in figures
        ]
        whole = sum(weight for _, weight in weighted)
        means[name] = sum(value * weight for value, weight in weighted) / (whole or 1.0)
    return means


class Forwarded(NamedTuple):
    """Counts of what went forwards and backwards through the policy."""

    tokens: float = 0.0
    """Number of tokens of the trajectories."""
    positions: float = 0.0
    """Number of forwarded positions: fewer where trajectories share their beginnings."""

    def figures(self) -> Figures:
        """Return the columns of the history."""
        return {"update_tokens": self.tokens, "update_positions": self.positions}


class TokenScores(NamedTuple):
    """What the policy made of a minibatch's rows; [B, T] on the CPU, 0 in other rows."""

    logprobs_BT: Tensor
    """Nats."""
    entropies_BT: Tensor
    """Of the distribution before each token, nats."""

    @classmethod
    def zeros(cls, shape: torch.Size) -> TokenScores:
        """Return scores of no row."""
        return cls(torch.zeros(shape), torch.zeros(shape))


class _Scored(NamedTuple):
    logprobs_bT: Tensor
    entropy_bT: Tensor
    forwarded: Forwarded


class PolicyGradient:
    """Adds gradients to the policy's parameters; the caller clears them after its update."""

    def __init__(self, policy: Scorer, algorithm: Algorithm, layout: Layout) -> None:
        self._policy = policy
        self.algorithm = algorithm
        self._layout = layout
        self._forwarded = Forwarded()

    def take_forwarded(self) -> Forwarded:
        """Return the counts of this process since the last call."""
        taken, self._forwarded = self._forwarded, Forwarded()
        return taken

    def add(
        self, minibatch: Minibatch, request: ScoreRequest, *, kl_coefficient: float
    ) -> tuple[Figures, TokenScores]:
        """Add the minibatch's gradient.

        Returns:
            The loss and its figures, and the scores of the minibatch's rows; this process's share
            of both, to be summed over processes.
        """
        runs = self._layout.micro_batches(minibatch.units, minibatch.rows.sequences)
        if self.algorithm.loss.whole_minibatch and len(runs) > 1:
            return self._add_by_cached_gradient(minibatch, runs, request, kl_coefficient)
        figures: Figures = {}
        found = TokenScores.zeros(minibatch.rows.action_mask_BT.shape)
        for run, weight in self._layout.processes.share(runs):
            with self._layout.hardware.precision():
                scored = self._score(minibatch, run, request)
            batch = minibatch.loss_batch(run, scored.logprobs_bT, scored.entropy_bT)
            loss = self.algorithm.objective(batch, kl_coefficient=kl_coefficient)
            (loss.loss * weight).backward()
            add_scaled(figures, {"loss": loss.loss.detach(), **loss.metrics}, weight)
            entropy = minibatch.mean_entropy(run, scored.entropy_bT)
            add_scaled(figures, {"entropy": entropy}, weight)
            self._keep(found, run, scored, weight)
            self._count(scored.forwarded, weight)
        return figures, found

    def _add_by_cached_gradient(
        self,
        minibatch: Minibatch,
        runs: list[list[Unit]],
        request: ScoreRequest,
        kl_coefficient: float,
    ) -> tuple[Figures, TokenScores]:
        """Add the gradient of a loss that compares tokens across micro-batches.

        All rows are scored first, without gradient; the loss's gradient with respect to the scores
        is then propagated through each micro-batch (GradCache, Gao et al. 2021, arXiv:2101.06983).
        """
        processes = self._layout.processes
        shape = minibatch.rows.action_mask_BT.shape
        all_rows = TokenScores.zeros(shape)
        shared = processes.share(runs)
        with torch.no_grad(), self._layout.hardware.precision():
            for run, weight in shared:
                scored = self._score(minibatch, run, request)
                self._keep(all_rows, run, scored, weight)
        own = TokenScores(*(values_BT.clone() for values_BT in all_rows))
        processes.sum(list(all_rows))
        rows = rows_of(minibatch.units)
        batch_entropy_bT = all_rows.entropies_BT[rows]
        leaves = [values_BT[rows].requires_grad_() for values_BT in all_rows]
        batch = minibatch.loss_batch(minibatch.units, *leaves)
        loss = self.algorithm.objective(batch, kl_coefficient=kl_coefficient)
        loss.loss.backward()
        gradients = [torch.zeros(shape), torch.zeros(shape)]
        for gradient_BT, leaf in zip(gradients, leaves, strict=True):
            if leaf.grad is not None:
                gradient_BT[rows] = leaf.grad
        for run, weight in shared:
            with self._layout.hardware.precision():
                scored = self._score(minibatch, run, request)
            surrogate = self._surrogate(run, scored, gradients)
            (surrogate * weight).backward()
            self._count(scored.forwarded, weight)
        figures: Figures = {}
        # every process has computed the whole loss: each contributes its share of the sum
        found = {"loss": loss.loss.detach(), **loss.metrics}
        found["entropy"] = minibatch.mean_entropy(minibatch.units, batch_entropy_bT)
        add_scaled(figures, found, 1 / processes.count)
        return figures, own

    def _surrogate(self, run: list[Unit], scored: _Scored, gradients: list[Tensor]) -> Tensor:
        """Return a scalar with the whole loss's gradient through this micro-batch's scores."""
        rows = rows_of(run)
        total = scored.logprobs_bT.new_zeros(())
        values = (scored.logprobs_bT, scored.entropy_bT)
        for values_bT, gradient_BT in zip(values, gradients, strict=True):
            if values_bT.requires_grad:
                width = values_bT.shape[1]
                total = total + (values_bT * gradient_BT[rows, :width].to(values_bT.device)).sum()
        return total

    def _score(self, minibatch: Minibatch, run: list[Unit], request: ScoreRequest) -> _Scored:
        sequences = [minibatch.rows.sequences[row] for row in rows_of(run)]
        batch = self._layout.batch(sequences)
        scores: Scores = self._policy(batch, request)
        assert scores.entropy_N is not None, "the update requests the entropy"
        lengths = [len(sequence.token_ids) for sequence in sequences]
        width = max(lengths)
        return _Scored(
            batch.dense(scores.logprobs_N, width=width),
            batch.dense(scores.entropy_N, width=width),
            Forwarded(sum(lengths), batch.num_tokens),
        )

    def _count(self, forwarded: Forwarded, weight: float) -> None:
        tokens, positions = self._forwarded
        self._forwarded = Forwarded(
            tokens + weight * forwarded.tokens, positions + weight * forwarded.positions
        )

    def _keep(self, kept: TokenScores, run: list[Unit], scored: _Scored, weight: float) -> None:
        for values_BT, own_bT in zip(kept, (scored.logprobs_bT, scored.entropy_bT), strict=True):
            values_BT[rows_of(run), : own_bT.shape[1]] += (own_bT.detach() * weight).cpu()

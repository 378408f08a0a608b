"""From a minibatch to the policy's gradient, by micro-batches, equal to that of the whole.

Axes: B rows of the step, b rows of a micro-batch, T token columns.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from espalier.algorithms import Algorithm
from espalier.training.distribution import ScoreRequest, Scores
from espalier.training.rl.dense_scoring import Layout
from espalier.training.rl.minibatch import Figures, Minibatch, add_scaled
from espalier.training.rl.minibatches import Unit, micro_batches, rows_of
from espalier.training.scoring import Scorer


class _Scored(NamedTuple):
    logprobs_bT: Tensor
    entropy_bT: Tensor


class PolicyGradient:
    """Adds gradients to the policy's parameters; whoever updates clears them."""

    def __init__(self, policy: Scorer, algorithm: Algorithm, layout: Layout) -> None:
        self._policy = policy
        self._algorithm = algorithm
        self._layout = layout

    def add(
        self, minibatch: Minibatch, request: ScoreRequest, *, kl_coefficient: float
    ) -> tuple[Figures, Tensor]:
        """Add the minibatch's gradient.

        Returns:
            The loss and its figures, and [B, T] log-probs of the minibatch's rows as they were
            scored (0 in other rows); this process's share of both, to be summed over processes.
        """
        lengths = [len(sequence.token_ids) for sequence in minibatch.rows.sequences]
        runs = micro_batches(minibatch.units, lengths, max_tokens=self._layout.micro_batch_tokens)
        if self._algorithm.loss.whole_minibatch and len(runs) > 1:
            return self._add_by_cached_gradient(minibatch, runs, request, kl_coefficient)
        figures: Figures = {}
        logprobs_BT = torch.zeros(minibatch.rows.action_mask_BT.shape)
        for run, weight in self._layout.processes.share(runs):
            with self._layout.hardware.precision():
                scored = self._score(minibatch, run, request)
            batch = minibatch.loss_batch(run, *scored)
            loss = self._algorithm.objective(batch, kl_coefficient=kl_coefficient)
            (loss.loss * weight).backward()
            add_scaled(figures, {"loss": loss.loss.detach(), **loss.metrics}, weight)
            self._keep(logprobs_BT, run, scored.logprobs_bT * weight)
        return figures, logprobs_BT

    def _add_by_cached_gradient(
        self,
        minibatch: Minibatch,
        runs: list[list[Unit]],
        request: ScoreRequest,
        kl_coefficient: float,
    ) -> tuple[Figures, Tensor]:
        """For losses that compare tokens of the whole minibatch, which no micro-batch holds.

        The scores of all are computed first, without gradient; the loss's gradient with respect to
        them is then led on through each micro-batch (GradCache, Gao et al. 2021, arXiv:2101.06983).
        """
        processes = self._layout.processes
        shape = minibatch.rows.action_mask_BT.shape
        logprobs_BT, entropy_BT = torch.zeros(shape), torch.zeros(shape)
        shared = processes.share(runs)
        with torch.no_grad(), self._layout.hardware.precision():
            for run, weight in shared:
                scored = self._score(minibatch, run, request)
                self._keep(logprobs_BT, run, scored.logprobs_bT * weight)
                self._keep(entropy_BT, run, scored.entropy_bT * weight)
        own_BT = logprobs_BT.clone()
        processes.sum([logprobs_BT, entropy_BT])
        rows = rows_of(minibatch.units)
        leaves = [values_BT[rows].requires_grad_() for values_BT in (logprobs_BT, entropy_BT)]
        batch = minibatch.loss_batch(minibatch.units, *leaves)
        loss = self._algorithm.objective(batch, kl_coefficient=kl_coefficient)
        loss.loss.backward()
        gradients = [torch.zeros(shape), torch.zeros(shape)]
        for gradient_BT, leaf in zip(gradients, leaves, strict=True):
            if leaf.grad is not None:
                gradient_BT[rows] = leaf.grad
        for run, weight in shared:
            with self._layout.hardware.precision():
                scored = self._score(minibatch, run, request)
            led_on = self._led_on(run, scored, gradients)
            (led_on * weight).backward()
        figures: Figures = {}
        # every process has computed all of it
        add_scaled(figures, {"loss": loss.loss.detach(), **loss.metrics}, 1 / processes.count)
        return figures, own_BT

    def _led_on(self, run: list[Unit], scored: _Scored, gradients: list[Tensor]) -> Tensor:
        """A scalar whose gradient is that of the scores, times what they change in the weights."""
        rows = rows_of(run)
        total = scored.logprobs_bT.new_zeros(())
        for values_bT, gradient_BT in zip(scored, gradients, strict=True):
            if values_bT.requires_grad:
                width = values_bT.shape[1]
                total = total + (values_bT * gradient_BT[rows, :width].to(values_bT.device)).sum()
        return total

    def _score(self, minibatch: Minibatch, run: list[Unit], request: ScoreRequest) -> _Scored:
        sequences = [minibatch.rows.sequences[row] for row in rows_of(run)]
        batch = self._layout.packed(sequences)
        scores: Scores = self._policy(batch, request)
        assert scores.entropy_N is not None, "the request asks for it"
        width = max(len(sequence.token_ids) for sequence in sequences)
        return _Scored(
            batch.dense(scores.logprobs_N, width=width), batch.dense(scores.entropy_N, width=width)
        )

    def _keep(self, values_BT: Tensor, run: list[Unit], scored_bT: Tensor) -> None:
        values_BT[rows_of(run), : scored_bT.shape[1]] += scored_bT.detach().cpu()

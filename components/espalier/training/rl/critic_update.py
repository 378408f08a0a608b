"""The critic's side of a step: the same minibatches, a loss and an optimizer of its own."""

from __future__ import annotations

import math
from typing import Any

from espalier.algorithms.critic import CriticSettings
from espalier.config import OptimizerConfig
from espalier.training.optimization import Updater
from espalier.training.parallel import sum_gradients
from espalier.training.rl.critic import Critic
from espalier.training.rl.dense_scoring import Layout
from espalier.training.rl.minibatch import Figures, Minibatch, add_scaled
from espalier.training.rl.minibatches import micro_batches, rows_of, totals
from espalier.training.sharding import (
    load_optimizer_state,
    load_whole_weights,
    optimizer_state,
    whole_weights,
)


class CriticUpdate:
    """Fits the critic to the returns."""

    def __init__(
        self,
        critic: Critic,
        settings: CriticSettings,
        layout: Layout,
        *,
        max_skipped_updates: int,
    ) -> None:
        """See `Updater` for `max_skipped_updates`."""
        self.critic = critic
        self._settings = settings
        self._layout = layout
        optimizer = OptimizerConfig(
            learning_rate=settings.learning_rate,
            max_grad_norm=settings.max_grad_norm,
            max_skipped_updates=max_skipped_updates,
            warmup_share=0.0,
            final_share=1.0,
            weight_decay=0.0,
        )
        self.updater = Updater(critic, optimizer, total_steps=1)

    def state(self) -> dict[str, Any]:
        """Weights and optimizer, for a checkpoint."""
        optimizer = optimizer_state(self.updater.optimizer)
        return {
            "model": whole_weights(self.critic),
            "optimizer": optimizer,
            "skipped_in_a_row": self.updater.skipped_in_a_row,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        load_whole_weights(self.critic, state["model"])
        load_optimizer_state(self.updater.optimizer, state["optimizer"])
        # checkpoints of earlier releases have no such count
        self.updater.skipped_in_a_row = state.get("skipped_in_a_row", 0)

    def apply(self, minibatch: Minibatch) -> Figures:
        """One optimizer update; this process's share of the figures, none where it was skipped.

        Fitted on the tokens that credit is computed over, as in verl, where critic and advantages
        share the response mask. Tokens that corrections or token filters drop from the policy's
        loss are among them: the credit of earlier tokens is made of their values.
        """
        assessed, sequences = minibatch.assessment, minibatch.rows.sequences
        mask_BT = minibatch.rows.loss_mask_BT
        sizes = totals(minibatch.units, mask_BT, max_tokens=minibatch.totals.max_tokens)
        assert assessed.values_BT is not None, "the critic has scored the step's rows"
        lengths = [len(sequence.token_ids) for sequence in sequences]
        runs = micro_batches(minibatch.units, lengths, max_tokens=self._layout.micro_batch_tokens)
        figures: Figures = {}
        for run, weight in self._layout.processes.share(runs):
            rows = rows_of(run)
            batch = self._layout.packed([sequences[row] for row in rows])
            width = max(lengths[row] for row in rows)
            with self._layout.hardware.precision():
                values_bT = batch.dense(self.critic(batch), width=width)
            device = values_bT.device
            found = self._settings.loss.loss(
                values_bT,
                assessed.credit.returns_BT[rows, :width].to(device),
                old_values_BT=assessed.values_BT[rows, :width].to(device),
                mask_BT=mask_BT[rows, :width].to(device),
                totals=sizes,
            )
            (found.loss * weight).backward()
            add_scaled(figures, {"value_loss": found.loss.detach(), **found.metrics}, weight)
        sum_gradients(self.critic, self._layout.processes)
        norm = self.updater.apply(0)
        if not math.isfinite(norm):
            return {}
        return figures | {"value_grad_norm": norm / self._layout.processes.count}

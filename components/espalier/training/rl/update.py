"""One training step: rows in, several optimizer updates of policy and critic out."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from espalier.algorithms.losses.value import CriticSettings
from espalier.config import OptimizerConfig, TrainingConfig
from espalier.records.step_figures import Per
from espalier.training.optimization import Updater
from espalier.training.parallel import (
    load_optimizer_state,
    load_whole_weights,
    optimizer_state,
    sum_gradients,
    whole_weights,
)
from espalier.training.rl.assessment import Assessment, Assessor, StepContext, engine_mismatch
from espalier.training.rl.models import Critic, Layout, Models
from espalier.training.rl.policy_gradient import (
    Figures,
    Minibatch,
    PolicyGradient,
    TokenScores,
    add_scaled,
    check_no_observation_is_learned,
    mean_figures,
    observed_share,
)
from espalier.training.rl.rows import Rows, Unit, minibatches, rows_of, totals


class CriticUpdate:
    """Fits the critic to the returns, on the policy's minibatches, with its own optimizer."""

    def __init__(
        self,
        critic: Critic,
        settings: CriticSettings,
        layout: Layout,
        *,
        max_skipped_updates: int,
    ) -> None:
        """Set up the optimizer, which allows `max_skipped_updates` in a row as `Updater` does."""
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
        """Return weights and optimizer state, for a checkpoint."""
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
        self.updater.skipped_in_a_row = state["skipped_in_a_row"]

    def apply(self, minibatch: Minibatch) -> Figures:
        """Make one optimizer update; return this process's share of the figures, {} if skipped.

        The critic is fitted on all tokens that advantages are computed over, as in verl, where both
        share the response mask. That includes tokens that corrections or token filters drop from
        the policy's loss: the advantages of earlier tokens depend on their values.
        """
        assessed, sequences = minibatch.assessment, minibatch.rows.sequences
        mask_BT = minibatch.rows.loss_mask_BT
        sizes = totals(minibatch.units, mask_BT, max_tokens=minibatch.totals.max_tokens)
        assert assessed.values_BT is not None, "the critic has scored the step's rows"
        runs = self._layout.micro_batches(minibatch.units, sequences)
        figures: Figures = {}
        for run, weight in self._layout.processes.share(runs):
            rows = rows_of(run)
            batch = self._layout.batch([sequences[row] for row in rows])
            width = max(len(sequences[row].token_ids) for row in rows)
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


class UpdateTensors(NamedTuple):
    """What an update knew of its rows; [B, T] on the CPU."""

    advantages_BT: Tensor
    loss_mask_BT: Tensor
    """The rows' loss mask without the tokens that corrections and token filters dropped."""
    scores: TokenScores | None
    """Of the weights before the update; None where no row was scored with them."""
    scored: frozenset[int]
    """Rows that were."""


class HeadGate:
    """Ends a step's updates once the gradient of the output head surges over that of the first.

    A step's first update is on-policy; later ones reuse its attempts, and harm gathers in the head
    before the policy collapses (Dynamic Gradient Gating, arXiv:2605.19425). The idea is theirs,
    the rule is not: a step is compared with itself, so that no state outlasts it.
    """

    SURGE = 3.0
    """Times the norm of the first update; no run has fixed it."""

    def __init__(self) -> None:
        self.is_on = False
        """Whether it acts: a response to a health notice says so."""
        self.is_shut = False
        """Whether it has ended the updates of the current step."""
        self._first: float | None = None

    def begin_step(self) -> None:
        """Open, and forget the norm of the last step's first update."""
        self.is_shut, self._first = False, None

    def observe(self, norm: float | None) -> None:
        """Take the norm of the head's gradient in the next update; None: it is not trained."""
        # one that is not finite is skipped anyway, and counted as such
        if not self.is_on or norm is None or not math.isfinite(norm):
            return
        if self._first is None:
            self._first = norm
        else:
            self.is_shut = norm > self.SURGE * self._first


class PolicyUpdate:
    """Updates policy and critic; one `apply` is one training step."""

    def __init__(
        self, models: Models, config: TrainingConfig, layout: Layout, *, max_action_tokens: int
    ) -> None:
        algorithm = config.algorithm
        self._policy = models.policy
        self._config = config
        self._processes = layout.processes
        self._max_action_tokens = max_action_tokens
        self._assessor = Assessor(models, algorithm, layout)
        self._gradient = PolicyGradient(models.policy, algorithm, layout)
        self.critic: CriticUpdate | None = None
        self._first_step = 0
        if models.critic is not None and algorithm.critic is not None:
            self.critic = CriticUpdate(
                models.critic,
                algorithm.critic,
                layout,
                max_skipped_updates=config.optimizer.max_skipped_updates,
            )
            self._first_step = algorithm.critic.warmup_of(config.steps)
        # the policy's learning rate warms up with its own first update, not with the critic's
        own_steps = max(1, config.steps - self._first_step)
        self.updater = Updater(models.policy, config.optimizer, own_steps)
        self.kl_coefficient = algorithm.kl.coefficient if algorithm.kl else 0.0
        self.kl_scale = 1.0
        """Multiplies `kl_coefficient`: a response to a health notice sets it."""
        self.head_gate = HeadGate()
        self.max_mismatch_kl: float | None = None
        """Mismatch of engine and trainer, nats per token, beyond which a step's gradient is not
        applied to the policy: a response to a health notice says so."""
        self._mismatch: Figures | None = None
        """`engine_mismatch` of the current step; None before rows are scored."""
        self.newest: UpdateTensors | None = None
        """Tensors of the newest step; None before the first."""

    def apply(self, rows: Rows, units: Sequence[Unit], step: StepContext) -> Figures:
        """Learn from `rows`.

        Args:
            rows: a step's trajectories.
            units: the step's rows; two together are a preference pair, chosen first.
            step: the step's number and sampling distribution.

        Raises:
            DataError: an observation is in the loss.
            TrainingError: too many updates in a row had a gradient that is not finite.
        """
        assessment = self._assessor.assess(
            rows, step.request, kl_coefficient=self.kl_scale * self.kl_coefficient
        )
        if not self._config.train_on_observations:
            check_no_observation_is_learned(rows, assessment.loss_mask_BT)
        updates: list[Figures] = []
        sizes: list[Mapping[Per, float]] = []
        skipped_before = self._skipped
        first = _scores_of(assessment)
        scored = range(len(rows))
        self.head_gate.begin_step()
        self._mismatch = None
        if first is not None:
            self._mismatch = engine_mismatch(rows, first.logprobs_BT, scored=scored, step=step)
        for minibatch in self._minibatches(rows, assessment, units, step):
            if self._is_mismatched:
                break
            found, scores = self._update(minibatch, step)
            updates.append(found)
            sizes.append(minibatch.sizes)
            if first is None and scores is not None:
                first, scored = scores, rows_of(minibatch.units)
            if self.head_gate.is_shut:
                break
        forwarded = self._gradient.take_forwarded().figures()
        figures = self._summed(mean_figures(updates, sizes) | forwarded)
        figures["skipped_updates"] = float(self._skipped - skipped_before)
        if self.head_gate.is_on:
            figures["gated"] = float(self.head_gate.is_shut)
        if self.max_mismatch_kl is not None:
            figures["skipped_step"] = float(self._is_mismatched)
        self.newest = UpdateTensors(
            assessment.credit.advantages_BT,
            assessment.loss_mask_BT,
            first,
            frozenset(scored) if first is not None else frozenset(),
        )
        figures |= self._mismatch or {}
        figures |= assessment.figures
        self._adapt_kl(figures, len(rows))
        return figures | _health(rows, assessment, step)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without the policy's weights, for `restore`."""
        return {
            "optimizer": optimizer_state(self.updater.optimizer),
            "kl_coefficient": self.kl_coefficient,
            "critic": self.critic.state() if self.critic else None,
            "skipped_in_a_row": self.updater.skipped_in_a_row,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        load_optimizer_state(self.updater.optimizer, state["optimizer"])
        self.kl_coefficient = state["kl_coefficient"]
        self.updater.skipped_in_a_row = state["skipped_in_a_row"]
        if self.critic is not None:
            self.critic.restore(state["critic"])

    @property
    def entropy_coefficient(self) -> float:
        """Weight of the policy's entropy in the loss."""
        return self._gradient.algorithm.entropy_coefficient

    @entropy_coefficient.setter
    def entropy_coefficient(self, coefficient: float) -> None:
        changed = {"entropy_coefficient": coefficient}
        self._gradient.algorithm = self._gradient.algorithm.model_copy(update=changed)

    @property
    def can_gate(self) -> bool:
        """Whether a step may make several updates, and each has a gradient of the output head."""
        head = self._policy.model.get_output_embeddings()
        is_trained = head is not None and head.weight.requires_grad
        return is_trained and self._config.epochs * self._config.minibatches > 1

    @property
    def _is_mismatched(self) -> bool:
        """Return whether engine and trainer disagree too much to learn from the step."""
        if self.max_mismatch_kl is None or not self._mismatch:
            return False
        # one that is not a number is beyond any bound
        return not self._mismatch["mismatch_kl"] <= self.max_mismatch_kl

    @property
    def _skipped(self) -> int:
        """Return the number of skipped updates of policy and critic so far."""
        return self.updater.skipped + (self.critic.updater.skipped if self.critic else 0)

    def _minibatches(
        self, rows: Rows, assessment: Assessment, units: Sequence[Unit], step: StepContext
    ) -> Iterator[Minibatch]:
        config = self._config
        for epoch in range(config.epochs):
            rng = random.Random(f"minibatch:{step.number}:{epoch}")
            for part in minibatches(units, count=config.minibatches, rng=rng):
                draws_BT = None
                if "draws_BT" in config.algorithm.loss.needs:
                    generator = torch.Generator().manual_seed(rng.getrandbits(48))
                    draws_BT = torch.rand(rows.action_mask_BT.shape, generator=generator)
                yield Minibatch(
                    rows=rows,
                    assessment=assessment,
                    units=part,
                    totals=totals(
                        part, assessment.loss_mask_BT, max_tokens=self._max_action_tokens
                    ),
                    draws_BT=draws_BT,
                )

    def _update(
        self, minibatch: Minibatch, step: StepContext
    ) -> tuple[Figures, TokenScores | None]:
        figures: Figures = {}
        if self.critic is not None:
            figures |= self.critic.apply(minibatch)
        if step.number < self._first_step:
            return figures, None
        self._policy.train()
        found, scores = self._gradient.add(
            minibatch, step.request, kl_coefficient=self.kl_scale * self.kl_coefficient
        )
        sum_gradients(self._policy, self._processes)
        self._processes.sum(list(scores))
        if self._mismatch is None:
            scored = rows_of(minibatch.units)
            self._mismatch = engine_mismatch(
                minibatch.rows, scores.logprobs_BT, scored=scored, step=step
            )
        of_head = head_grad_norm(self._policy.model)
        self.head_gate.observe(of_head)
        if self.head_gate.is_shut or self._is_mismatched:
            self.updater.discard()
            norm = math.inf
        else:
            norm = self.updater.apply(step.number - self._first_step)
        self._policy.eval()
        count = self._processes.count
        if math.isfinite(norm):
            figures |= found | {"grad_norm": norm / count}
        if of_head is not None and (math.isfinite(norm) or self.head_gate.is_shut):
            figures["head_grad_norm"] = of_head / count
        return figures, scores

    def _summed(self, figures: Figures) -> Figures:
        values = torch.tensor(list(figures.values()), dtype=torch.float64)
        self._processes.sum([values])
        return dict(zip(figures, values.tolist(), strict=True))

    def _adapt_kl(self, figures: Figures, trajectories: int) -> None:
        kl = self._config.algorithm.kl
        if kl is not None and kl.adaptive is not None and "kl" in figures:
            self.kl_coefficient = kl.adaptive.next_coefficient(
                self.kl_coefficient, figures["kl"], trajectories
            )


def head_grad_norm(policy: PreTrainedModel) -> float | None:
    """Return the norm of the gradient of the output head; None where the head is not trained.

    A head that is tied to the embeddings has one gradient with them. Of a sharded head, each
    process has to ask.
    """
    head = policy.get_output_embeddings()
    if head is None or head.weight.grad is None:
        return None
    norm = torch.linalg.vector_norm(head.weight.grad)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


_LEAST_CREDIT = 1e-6
"""Equal trajectories whose penalties are scored in other micro-batches differ by their rounding."""


def _scores_of(assessment: Assessment) -> TokenScores | None:
    logprobs_BT, entropies_BT = assessment.trainer_logprobs_BT, assessment.entropies_BT
    if logprobs_BT is None or entropies_BT is None:
        return None
    return TokenScores(logprobs_BT, entropies_BT)


def _health(rows: Rows, assessment: Assessment, step: StepContext) -> Figures:
    staleness_B = (step.number - rows.versions_B).float()
    credited_B = (assessment.credit.advantages_BT.abs() > _LEAST_CREDIT).any(dim=1)
    return {
        "credited_share": float(credited_B.float().mean()),
        "observation_share": observed_share(rows, assessment.loss_mask_BT),
        "staleness_mean": float(staleness_B.mean()),
        "staleness_max": float(staleness_B.max()),
    }

"""Between sampling and update: what the weights of this moment say of a step's rows.

    rows -> proximal, reference and critic's scores -> rewards -> advantages -> corrections

Axes: B trajectories, T token columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import Tensor

from espalier.algorithms import Algorithm
from espalier.algorithms.batch import Credit, CreditBatch
from espalier.algorithms.masking import masked_mean
from espalier.algorithms.off_policy import Correction, CorrectionBatch, correct
from espalier.training.distribution import ScoreRequest, Scores
from espalier.training.rl.critic import Critic
from espalier.training.rl.dense_scoring import Layout, dense_scores
from espalier.training.rl.rows import Rows
from espalier.training.scoring import Scorer


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """What rows are scored with."""

    policy: Scorer
    reference: Scorer | None = None
    """Frozen; for a KL penalty or a loss that compares with it."""
    critic: Critic | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """All that the update needs beside the rows; [B, T] on the CPU, 0 outside the loss mask."""

    credit: Credit
    loss_mask_BT: Tensor
    """Less what corrections dropped."""
    proximal_logprobs_BT: Tensor
    """NaN where neither engine nor trainer has scored the token: the ratio is 1 there."""
    trainer_logprobs_BT: Tensor | None = None
    """Of the weights that the update starts from, where they were asked for."""
    reference_logprobs_BT: Tensor | None = None
    values_BT: Tensor | None = None
    weights_BT: Tensor | None = None
    figures: Mapping[str, float] = field(default_factory=dict)


class _Scores(NamedTuple):
    """[B, T] each; what the algorithm does not need is None."""

    trainer_BT: Tensor | None
    entropy_BT: Tensor | None
    sum_pi_squared_BT: Tensor | None
    reference_BT: Tensor | None
    values_BT: Tensor | None


class Assessor:
    """Scores rows with the models as they are, and gives credit."""

    def __init__(self, models: Models, algorithm: Algorithm, layout: Layout) -> None:
        self._models = models
        self._algorithm = algorithm
        self._layout = layout

    def assess(self, rows: Rows, request: ScoreRequest, *, kl_coefficient: float) -> Assessment:
        """Scores, rewards, advantages, corrections, in this order.

        Args:
            rows: of one step.
            request: the distribution that they were sampled from.
            kl_coefficient: reward units a nat, of a penalty in the reward.
        """
        scores = self._scores(rows, request)
        proximal_BT = rows.behavior_logprobs_BT
        if self._algorithm.proximal == "recomputed":
            proximal_BT = _present(scores.trainer_BT)
        rewards_BT, figures = self._rewards(rows, proximal_BT, scores, kl_coefficient)
        credit = self._credit(rows, rewards_BT, proximal_BT, scores)
        correction = Correction(mask_BT=rows.loss_mask_BT)
        if self._algorithm.off_policy:
            correction = correct(
                self._algorithm.off_policy,
                CorrectionBatch(
                    trainer_logprobs_BT=_present(scores.trainer_BT),
                    behavior_logprobs_BT=rows.behavior_logprobs_BT,
                    action_mask_BT=rows.loss_mask_BT,
                    advantages_BT=credit.advantages_BT,
                ),
            )
        figures |= {name: float(value) for name, value in correction.metrics.items()}
        loss_mask_BT = correction.mask_BT
        for rule in self._algorithm.token_filters:
            loss_mask_BT = rule.masked(loss_mask_BT, _present(scores.entropy_BT))
        return Assessment(
            credit=credit,
            loss_mask_BT=loss_mask_BT,
            proximal_logprobs_BT=proximal_BT,
            trainer_logprobs_BT=scores.trainer_BT,
            reference_logprobs_BT=scores.reference_BT,
            values_BT=scores.values_BT,
            weights_BT=correction.weights_BT,
            figures=figures,
        )

    def _scores(self, rows: Rows, request: ScoreRequest) -> _Scores:
        models, algorithm, sequences = self._models, self._algorithm, rows.sequences
        trainer_BT = entropy_BT = squared_BT = reference_BT = values_BT = None
        if algorithm.scores_before_update:
            asked = replace(request, entropy=True, sum_pi_squared=True)
            trainer_BT, entropy_BT, squared_BT = dense_scores(
                sequences, lambda batch: _all_of(models.policy(batch, asked)), self._layout,
                figures=3,
            )  # fmt: skip
        if (reference := models.reference) is not None:
            asked_of_reference = replace(request, entropy=False, sum_pi_squared=False)
            [reference_BT] = dense_scores(
                sequences,
                lambda batch: [reference(batch, asked_of_reference).logprobs_N],
                self._layout,
            )
        if (critic := models.critic) is not None:
            [values_BT] = dense_scores(sequences, lambda batch: [critic(batch)], self._layout)
        return _Scores(trainer_BT, entropy_BT, squared_BT, reference_BT, values_BT)

    def _rewards(
        self, rows: Rows, proximal_BT: Tensor, scores: _Scores, kl_coefficient: float
    ) -> tuple[Tensor, dict[str, float]]:
        """Rewards, less what straying from the reference costs where the reward is to pay it."""
        kl = self._algorithm.kl
        if kl is None or kl.place != "reward":
            return rows.rewards_BT, {}
        mask_BT = rows.action_mask_BT
        log_ratio_BT = proximal_BT - _present(scores.reference_BT)
        paid_BT = kl.penalized(rows.rewards_BT, log_ratio_BT, mask_BT, coefficient=kl_coefficient)
        nats = masked_mean(rows.rewards_BT - paid_BT, mask_BT) / kl_coefficient
        return paid_BT, {"kl": float(nats)}

    def _credit(
        self, rows: Rows, rewards_BT: Tensor, proximal_BT: Tensor, scores: _Scores
    ) -> Credit:
        advantage = self._algorithm.advantage
        if advantage is None:  # the material is imitated, or compared in pairs
            ones_BT = rows.loss_mask_BT.float()
            return Credit(ones_BT, ones_BT)
        credit = advantage.credit(
            CreditBatch(
                rewards_BT=rewards_BT,
                action_mask_BT=rows.loss_mask_BT,
                groups_B=rows.groups_B,
                turns_BT=rows.turns_BT,
                values_BT=scores.values_BT,
                baseline_rewards_B=rows.baseline_rewards_B,
                behavior_logprobs_BT=rows.behavior_logprobs_BT,
                reference_logprobs_BT=scores.reference_BT,
                proximal_logprobs_BT=proximal_BT,
                sum_pi_squared_BT=scores.sum_pi_squared_BT,
                total_tokens_B=rows.total_tokens_B,
                reward_terms_BK=rows.reward_terms_BK,
            )
        )
        silenced_B1 = rows.silenced_B[:, None]
        return credit._replace(advantages_BT=credit.advantages_BT.masked_fill(silenced_B1, 0.0))


def _all_of(scores: Scores) -> list[Tensor]:
    return [_present(values_N) for values_N in scores]


def _present(tensor: Tensor | None) -> Tensor:
    assert tensor is not None, "the algorithm says that it needs this"
    return tensor

"""Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290, eq. 7)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from espalier.algorithms.aggregation import Aggregation
from espalier.algorithms.batch import LossBatch, PolicyLoss
from espalier.algorithms.losses.rule import PolicyLossRule
from espalier.algorithms.masking import kept


class Dpo(PolicyLossRule):
    """-log sigmoid(beta (margin of the chosen - margin of the rejected trajectory)).

    A trajectory's margin is the sum over its loss tokens of policy minus reference log-prob; a
    common prefix of both (Agent Q, arXiv:2408.07199) cancels. Advantages are not read. Mean over
    the minibatch's pairs; a pair stays in one micro-batch.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"pairs_P2", "reference_logprobs_BT"})
    fixed_aggregation: ClassVar[Aggregation | None] = "seq_mean_token_sum"
    takes_weights: ClassVar[bool] = False
    name: Literal["dpo"] = "dpo"
    beta: float = Field(default=0.1, gt=0)
    """Weight of a nat of margin; the paper's 0.1."""

    def loss(self, batch: LossBatch, aggregation: Aggregation) -> PolicyLoss:
        """Return the loss; metrics: share of correctly ordered pairs, mean reward margin."""
        assert batch.pairs_P2 is not None
        assert batch.reference_logprobs_BT is not None
        log_ratio_BT = batch.policy_logprobs_BT - batch.reference_logprobs_BT
        margins_B = kept(log_ratio_BT, batch.loss_mask_BT).sum(dim=1)
        chosen_P, rejected_P = batch.pairs_P2.unbind(dim=1)
        logits_P = self.beta * (margins_B[chosen_P] - margins_B[rejected_P])
        # log(1 + exp(-x)) without overflow
        loss_P = (-logits_P).logaddexp(logits_P.new_zeros(()))
        metrics = {
            "pair_accuracy": (logits_P > 0).sum() / batch.totals.pairs,
            "pair_margin": logits_P.detach().sum() / batch.totals.pairs,
        }
        return PolicyLoss(loss_P.sum() / batch.totals.pairs, metrics)

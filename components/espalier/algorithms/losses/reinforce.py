"""The plain policy gradient (Williams 1992), which GPG trains with (arXiv:2504.02546)."""

from __future__ import annotations

from typing import ClassVar, Literal

from espalier.algorithms.aggregation import Aggregation, aggregate
from espalier.algorithms.batch import LossBatch, PolicyLoss
from espalier.algorithms.losses.rule import PolicyLossRule, weighted
from espalier.algorithms.masking import kept


class Reinforce(PolicyLossRule):
    """-A log pi for each token; only importance weights correct for off-policy data."""

    has_ratio: ClassVar[bool] = False
    name: Literal["reinforce"] = "reinforce"

    def loss(self, batch: LossBatch, aggregation: Aggregation) -> PolicyLoss:
        """Return the loss, without metrics, as there is no ratio."""
        mask_BT = batch.loss_mask_BT
        logprobs_BT = kept(batch.policy_logprobs_BT, mask_BT)
        loss_BT = weighted(-batch.advantages_BT * logprobs_BT, batch)
        return PolicyLoss(aggregate(aggregation, loss_BT, mask_BT, batch.totals))

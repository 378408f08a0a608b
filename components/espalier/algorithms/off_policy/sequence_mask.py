"""Off-policy sequence masking (DeepSeek-V3.2 2025, arXiv:2512.02556, sec. 3.1; TRL)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from espalier.algorithms.masking import row_means
from espalier.algorithms.off_policy.correction import (
    Correction,
    CorrectionBatch,
    CorrectionRule,
)


class OffPolicySequenceMask(CorrectionRule):
    """Sets the weight to 0 for trajectories with a negative advantage that are far off-policy.

    Positive examples may be old; negative ones teach little unless the policy would still produce
    them. The trajectory still counts in the means.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"advantages_BT"})
    name: Literal["off_policy_sequence_mask"] = "off_policy_sequence_mask"
    threshold: float = Field(default=0.1, gt=0)
    """Nats per token: the trajectory's mean of behaviour minus trainer log-prob."""

    def correct(self, batch: CorrectionBatch) -> Correction:
        """Return the weights; metric: the share of tokens with weight 0."""
        assert batch.advantages_BT is not None
        mask_BT = batch.action_mask_BT
        gap_B = -row_means(batch.log_ratio_BT, mask_BT)
        silenced_BT = (batch.advantages_BT < 0) & (gap_B > self.threshold)[:, None]
        share = (silenced_BT & mask_BT).sum() / mask_BT.sum()
        weights_BT = (~silenced_BT).to(batch.trainer_logprobs_BT.dtype)
        return Correction(weights_BT=weights_BT, mask_BT=mask_BT, metrics={"silenced_share": share})

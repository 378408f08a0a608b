"""Which tokens carry the fall of entropy (Cui et al. 2025, arXiv:2505.22617)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from espalier.algorithms.batch import LossBatch
from espalier.algorithms.masking import masked_mean

if TYPE_CHECKING:
    from torch import Tensor


def token_covariance(batch: LossBatch) -> Tensor:
    """[B, T]: (A - mean A) (log pi - mean log pi), means over all loss tokens; no gradient.

    A token that is likely and favoured (or unlikely and disfavoured) stands high: following it
    makes the distribution sharper. What stands outside the mask is not to be read.
    """
    centred_BT, advantages_BT = (
        values_BT - masked_mean(values_BT, batch.loss_mask_BT)
        for values_BT in (batch.policy_logprobs_BT.detach(), batch.advantages_BT)
    )
    return advantages_BT * centred_BT


def pick_highest(scores_BT: Tensor, mask_BT: Tensor, count: int) -> Tensor:
    """[B, T] bool: the `count` tokens of the mask that score highest, or all when there are fewer.

    The count is exact: ties are broken, so rounding cannot select more.
    """
    scores_N = scores_BT[mask_BT]
    chosen_N = mask_BT.new_zeros(scores_N.shape)
    chosen_N[scores_N.topk(min(count, len(scores_N))).indices] = True
    return mask_BT.new_zeros(mask_BT.shape).masked_scatter(mask_BT, chosen_N)

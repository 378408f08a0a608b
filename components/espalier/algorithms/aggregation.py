"""Aggregation: how the losses of tokens become one number. Axes: B trajectories, T tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from espalier.algorithms.batch import Totals

if TYPE_CHECKING:
    from torch import Tensor

Aggregation = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant"]
"""token_mean: DAPO (arXiv:2503.14476, eq. 8); seq_mean_token_mean: GRPO (arXiv:2402.03300, eq. 3);
constant: Dr. GRPO (arXiv:2503.20783), a sum over `rows * max_tokens`, whatever the lengths."""


def aggregate(mode: Aggregation, loss_BT: Tensor, mask_BT: Tensor, totals: Totals) -> Tensor:
    """This micro-batch's share of the minibatch's loss; the shares of all add up to the whole.

    Args:
        mode: which mean.
        loss_BT: [B, T] loss of each token; what stands outside the mask is not read.
        mask_BT: [B, T] bool.
        totals: sizes of the whole minibatch.

    Returns:
        A scalar.
    """
    kept_BT = loss_BT.masked_fill(~mask_BT, 0.0)
    match mode:
        case "token_mean":
            return kept_BT.sum() / totals.tokens
        case "seq_mean_token_mean":
            lengths_B = mask_BT.sum(dim=1).clamp(min=1)
            return (kept_BT.sum(dim=1) / lengths_B).sum() / totals.sequences
        case "seq_mean_token_sum":
            return kept_BT.sum() / totals.sequences
        case "constant":
            return kept_BT.sum() / (totals.rows * totals.max_tokens)

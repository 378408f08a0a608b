"""Aggregation: how the tokens' losses become one number. Axes: B trajectories, T tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from espalier.algorithms.batch import Totals
from espalier.algorithms.masking import kept, row_means

if TYPE_CHECKING:
    from torch import Tensor

Aggregation = Literal[
    "token_mean",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "row_mean_token_mean",
    "row_mean_token_sum",
    "constant",
    "token_sum_norm",
]
"""Names and sources of the aggregations. A row is a trajectory, a sequence one with loss tokens.

    token_mean           DAPO (arXiv:2503.14476, eq. 8); verl token-mean; TRL dapo and bnpo;
                         prime-rl, whose losses are sums that its trainer divides by the tokens
    seq_mean_token_mean  GRPO (arXiv:2402.03300, eq. 3) as in verl: rows without tokens left out
    seq_mean_token_sum   verl
    row_mean_token_mean  GRPO as in TRL: rows without tokens count as 0
    row_mean_token_sum   TRL luspo (arXiv:2602.05261: each sequence's loss times its length)
    constant             Dr. GRPO (arXiv:2503.20783) as in TRL: a sum over rows * max_tokens
    token_sum_norm       Dr. GRPO as in verl (seq-mean-token-sum-norm): over max_tokens alone,
                         so the step grows with the minibatch

All divide by the sizes of the whole minibatch (`Totals`). Upstreams that divide by those of the
micro-batch (TRL's bnpo and grpo) agree where there is one, or where all are of one size.
"""


def aggregate(mode: Aggregation, loss_BT: Tensor, mask_BT: Tensor, totals: Totals) -> Tensor:
    """This micro-batch's share of the minibatch's loss; the shares of all add up to the whole.

    Args:
        mode: which mean.
        loss_BT: [B, T] loss of each token; values outside the mask are not read.
        mask_BT: [B, T] bool.
        totals: sizes of the whole minibatch.

    Returns:
        A scalar.
    """
    match mode:
        case "token_mean":
            return kept(loss_BT, mask_BT).sum() / totals.tokens
        case "seq_mean_token_mean":
            return row_means(loss_BT, mask_BT).sum() / totals.sequences
        case "seq_mean_token_sum":
            return kept(loss_BT, mask_BT).sum() / totals.sequences
        case "row_mean_token_mean":
            return row_means(loss_BT, mask_BT).sum() / totals.rows
        case "row_mean_token_sum":
            return kept(loss_BT, mask_BT).sum() / totals.rows
        case "constant":
            return kept(loss_BT, mask_BT).sum() / (totals.rows * totals.max_tokens)
        case "token_sum_norm":
            return kept(loss_BT, mask_BT).sum() / totals.max_tokens

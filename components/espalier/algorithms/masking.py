"""Sums, means, whitening and discounting over the tokens of a mask; nothing outside is ever read.

Values are masked before any arithmetic: a NaN or an infinity in a masked column would otherwise
give a NaN gradient (0 * inf).

Axes: B trajectories, T tokens; S steps (tokens or turns). A step outside the mask is skipped:
no discount is applied across it, and results are 0 on it. A discount may be a number, or a tensor
that broadcasts to [B, S] and holds the weight of the step after each one: 0 ends a sum there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def kept(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B, T]: `values_BT`, 0 outside the mask, gradient included."""
    return values_BT.masked_fill(~mask_BT, 0.0)


def row_means(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B]: mean over the tokens of each row; 0 in a row that has none."""
    return kept(values_BT, mask_BT).sum(dim=1) / mask_BT.sum(dim=1).clamp(min=1)


def masked_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Scalar: mean over all tokens of the mask; 0 when there are none."""
    return kept(values_BT, mask_BT).sum() / mask_BT.sum().clamp(min=1)


VARIANCE_EPS = 1e-8
"""Inside the root, as verl's `masked_whiten` has it."""


def whiten(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B, T]: (x - mean) / sqrt(variance + 1e-8) over all masked tokens, 0 outside the mask.

    The variance is that of the sample (ddof 1).
    """
    kept_N = values_BT[mask_BT]
    if _all_equal(kept_N):
        return values_BT.new_zeros(values_BT.shape)
    whitened_BT = (values_BT - kept_N.mean()) * (kept_N.var() + VARIANCE_EPS).rsqrt()
    return kept(whitened_BT, mask_BT)


def standardize(values_N: Tensor, *, eps: float) -> Tensor:
    """[N]: (x - mean) / (deviation + eps), ddof 1; TRL's form for one number per trajectory."""
    if _all_equal(values_N):
        return values_N.new_zeros(values_N.shape)
    return (values_N - values_N.mean()) / (values_N.std() + eps)


def _all_equal(values_N: Tensor) -> bool:
    return values_N.numel() < 2 or bool(values_N.min() == values_N.max())


def discounted_to_go(values_BS: Tensor, mask_BS: Tensor, decay: float | Tensor) -> Tensor:
    """[B, S]: each step's value + decay * the same sum from the next step on."""
    decay_BS = values_BS.new_ones(values_BS.shape) * decay
    sums_BS = values_BS.new_zeros(values_BS.shape)
    carried_B = values_BS.new_zeros(len(values_BS))
    for s in reversed(range(values_BS.shape[1])):
        sum_B = values_BS[:, s] + decay_BS[:, s] * carried_B
        carried_B = sum_B.where(mask_BS[:, s], carried_B)
        sums_BS[:, s] = carried_B
    return kept(sums_BS, mask_BS)


def next_values(values_BS: Tensor, mask_BS: Tensor) -> Tensor:
    """[B, S]: the value of the next step, 0 after the last one."""
    following_BS = values_BS.new_zeros(values_BS.shape)
    carried_B = values_BS.new_zeros(len(values_BS))
    for s in reversed(range(values_BS.shape[1])):
        following_BS[:, s] = carried_B
        carried_B = values_BS[:, s].where(mask_BS[:, s], carried_B)
    return kept(following_BS, mask_BS)


def generalized_advantages(
    rewards_BS: Tensor,
    values_BS: Tensor,
    mask_BS: Tensor,
    *,
    gamma: float | Tensor,
    gae_lambda: float | Tensor,
) -> Tensor:
    """[B, S]: sum of (gamma lambda)^l delta, delta = r + gamma V' - V.

    Schulman et al. 2015, arXiv:1506.02438, eq. 16.

    Args:
        rewards_BS: [B, S].
        values_BS: [B, S] value of the state before each step.
        mask_BS: [B, S] bool.
        gamma: discount of a step.
        gae_lambda: weight of the longer sums, a number or broadcast like a discount.
    """
    deltas_BS = rewards_BS + gamma * next_values(values_BS, mask_BS) - values_BS
    return discounted_to_go(deltas_BS, mask_BS, gamma * gae_lambda)

"""Sums over what is still to come, along sequences with holes: tokens, or turns, of a trajectory.

Axes: B trajectories, S steps (tokens or turns). A step outside the mask does not exist: nothing is
read there, no discount is applied across it, and the results are 0 on it. A discount may be a
number, or a tensor that broadcasts to [B, S] and holds what the step after each one is worth: 0
ends a sum there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from espalier.algorithms.masking import kept

if TYPE_CHECKING:
    from torch import Tensor


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

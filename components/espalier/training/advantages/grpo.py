"""Group-relative advantages (Shao et al. 2024, arXiv:2402.03300, sec. 4.1.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

STD_EPS = 1e-6  # verl's constant; it only matters where rewards are nearly equal


def is_zero_variance(rewards_G: Sequence[float]) -> bool:
    """Whether all rewards of a group are equal: such a group carries no signal."""
    return max(rewards_G) == min(rewards_G)


def grpo_advantages(rewards_PG: Tensor) -> Tensor:
    """Centre every reward on its group and divide by the group's standard deviation (ddof 1).

    Args:
        rewards_PG: [P, G] float, reward units; row p holds the G >= 2 trajectories of one task.

    Returns:
        [P, G]. A row of equal rewards is exactly 0: its float mean may differ in the last bit
        from the rewards, and dividing by the epsilon would make credit of the rounding.

    Raises:
        ValueError: a reward is not finite.
    """
    if not torch.isfinite(rewards_PG).all():
        raise ValueError("a reward is not finite; a verifier must return a number")
    centred_PG = rewards_PG - rewards_PG.mean(dim=1, keepdim=True)
    scaled_PG = centred_PG / (rewards_PG.std(dim=1, keepdim=True) + STD_EPS)
    equal_P1 = rewards_PG.amax(dim=1, keepdim=True) == rewards_PG.amin(dim=1, keepdim=True)
    return torch.where(equal_P1, torch.zeros_like(scaled_PG), scaled_PG)

"""The clipped surrogate of PPO with two bounds (DAPO, Yu et al. 2025, arXiv:2503.14476, eq. 8)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class ClippedLoss(NamedTuple):
    """[N] loss of each token, and which tokens the clip held back."""

    loss_N: Tensor
    clipped_N: Tensor


def asymmetric_clip(
    policy_logprobs_N: Tensor,
    behavior_logprobs_N: Tensor,
    advantages_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> ClippedLoss:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) for each token.

    r is exp(policy - behaviour); the wider upper bound leaves room for tokens that are still rare.
    """
    importance_ratio_N = (policy_logprobs_N - behavior_logprobs_N).exp()
    bounded_N = importance_ratio_N.clamp(1 - clip_low, 1 + clip_high)
    plain_N = importance_ratio_N * advantages_N
    held_N = bounded_N * advantages_N
    return ClippedLoss(-torch.minimum(plain_N, held_N), held_N < plain_N)

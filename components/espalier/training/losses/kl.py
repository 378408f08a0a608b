"""Estimators of KL(policy || reference) from sampled tokens (Schulman 2020, "Approximating KL")."""

from __future__ import annotations

from torch import Tensor


def k3_kl(policy_logprobs_N: Tensor, reference_logprobs_N: Tensor) -> Tensor:
    """k3 estimate of each token, nats: exp(d) - d - 1 with d = reference - policy; never < 0."""
    difference_N = reference_logprobs_N - policy_logprobs_N
    return difference_N.exp() - difference_N - 1

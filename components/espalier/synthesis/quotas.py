"""Sharing a number out by weight."""

from __future__ import annotations

from collections.abc import Mapping


def apportion(weights: Mapping[str, float], total: int) -> dict[str, int]:
    """Whole shares of `total` in proportion to `weights`, by largest remainders.

    Equal remainders go to the earlier key, so that the result depends on nothing but its arguments.
    """
    weight_sum = sum(weights.values())
    exact = {key: total * weight / weight_sum for key, weight in weights.items()}
    shares = {key: int(share) for key, share in exact.items()}
    by_remainder = sorted(exact, key=lambda key: shares[key] - exact[key])
    for key in by_remainder[: total - sum(shares.values())]:
        shares[key] += 1
    return shares

"""Whitening: values shifted to mean 0 and scaled to deviation 1, in the two conventions in use.

Axes: B trajectories, T tokens. Equal values become exactly 0: their float mean may differ from them
in the last bit, and dividing by the epsilon would make credit of the rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from espalier.algorithms.masking import kept

if TYPE_CHECKING:
    from torch import Tensor

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
    """[N]: (x - mean) / (deviation + eps), ddof 1; TRL's way for one number a trajectory."""
    if _all_equal(values_N):
        return values_N.new_zeros(values_N.shape)
    return (values_N - values_N.mean()) / (values_N.std() + eps)


def _all_equal(values_N: Tensor) -> bool:
    return values_N.numel() < 2 or bool(values_N.min() == values_N.max())

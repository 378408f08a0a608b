"""Sums and means over the tokens of a mask, where what stands outside is never read.

Values are masked before anything else is done with them: a NaN or an infinity in a masked column
would otherwise come back as a NaN gradient (0 * inf). Axes: B trajectories, T token columns.
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

"""Trains only on tokens of high entropy (Wang et al. 2025, arXiv:2506.01939)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from espalier.algorithms.filters.rule import TokenFilter

if TYPE_CHECKING:
    from torch import Tensor


class HighEntropyTokens(TokenFilter):
    """Keeps the tokens of the highest entropy: those at its quantile 1 - `share` and above.

    The quantile is taken over all tokens given, as TRL takes it over its micro-batches.
    """

    name: Literal["high_entropy_tokens"] = "high_entropy_tokens"
    share: float = Field(default=0.2, gt=0, lt=1)
    """Share of the tokens that is kept; the paper's value."""

    def masked(self, loss_mask_BT: Tensor, entropy_BT: Tensor) -> Tensor:
        """Return [B, T] bool: the rest of the mask."""
        if not loss_mask_BT.any():
            return loss_mask_BT
        # float32 as in TRL; quantiles of half precision do not exist
        threshold = entropy_BT[loss_mask_BT].float().quantile(1 - self.share)
        return loss_mask_BT & (entropy_BT >= threshold)

"""What a filter of tokens is: a narrower loss mask."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from espalier.algorithms.rule import Rule

if TYPE_CHECKING:
    from torch import Tensor


class TokenFilter(Rule):
    """Takes tokens out of the loss, and never puts any in."""

    whole_minibatch: ClassVar[bool] = True
    """Whether tokens are compared with each other, so that micro-batches change the outcome."""

    @abstractmethod
    def masked(self, loss_mask_BT: Tensor, entropy_BT: Tensor) -> Tensor:
        """[B, T] bool: what is left of the mask.

        Args:
            loss_mask_BT: [B, T] bool.
            entropy_BT: [B, T] of each token's distribution under the policy, nats.
        """

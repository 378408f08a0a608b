"""What the lock-step engine needs of a model: contexts in slots, any of which may advance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from espalier.rollout.engines.pages import Ints


class Decoder(Protocol):
    """Incremental decoding of contexts that lie in numbered slots.

    `advance` returns hidden states, and `logits` projects only those that are sampled from: a
    token that is read and not sampled after costs no projection.
    """

    def begin(self) -> None:
        """Forget every context, and take the weights as they are now."""
        ...

    def end(self) -> None:
        """Forget every context, and give their memory back."""
        ...

    def advance(self, slots_R: Ints, counts_R: Ints, token_ids_M: Ints) -> Tensor:
        """Append tokens to some of the contexts; the others stay as they are.

        Args:
            slots_R: different slots; a slot that is not in use begins an empty context.
            counts_R: how many tokens each appends, in ascending order.
            token_ids_M: the tokens, row after row.

        Returns:
            [R, H] hidden state of each row's last token.
        """
        ...

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """[N, V] logits of the next token; the caller may overwrite them."""
        ...

    def fork(self, source: int, targets: Sequence[int]) -> None:
        """Give unused slots a copy of the context of `source`."""
        ...

    def release(self, slot: int) -> None:
        """Forget the context of `slot`; it may be used again."""
        ...

"""What the lock-step engine needs of a model: rows that all hold the same number of tokens."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Decoder(Protocol):
    """Incremental decoding of B rows in lock-step.

    Every row holds the same number of tokens, so no padding and no attention mask exist. `advance`
    returns hidden states and `logits` projects only the rows that sample: an observation token
    that is forced into the cache costs no projection.
    """

    def start(self, token_ids_PT: Tensor, *, rows: Tensor, max_tokens: int) -> Tensor:
        """Forget everything, read T tokens of P prompts, then copy prompt `rows[b]` into row b.

        Returns:
            [B, H] hidden state of each row's last token.
        """
        ...

    def advance(self, token_ids_B: Tensor) -> Tensor:
        """Append one token to every row; returns [B, H]."""
        ...

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """[N, V] logits of the next token."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Keep only `rows` (indices into the current rows), in that order."""
        ...

"""Text that grows token by token, and ends where a stop text begins.

A token need not be whole characters, and its text may depend on the one before it; so what is new
is the difference of two decodings that begin a few tokens back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer decodes the first bytes of a character to."""


class Decodes(Protocol):
    """What is needed of a tokenizer."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str | list[str]:
        """The text of tokens; of one list of them, one text."""
        ...


class GrowingText:
    """The text of the tokens read so far, in pieces that are never taken back."""

    def __init__(self, tokenizer: Decodes, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skips = skip_special_tokens
        self._token_ids: list[int] = []
        self._context = 0
        """Where the decodings begin."""
        self._told = 0
        """Tokens whose text was given."""

    def read(self, token_ids: Sequence[int]) -> str:
        """What the tokens add; an unfinished character waits for its rest."""
        self._token_ids.extend(token_ids)
        new = self._new_text()
        if not new or new.endswith(_UNFINISHED):
            return ""
        self._context, self._told = self._told, len(self._token_ids)
        return new

    def rest(self) -> str:
        """What was never finished."""
        new = self._new_text()
        self._context = self._told = len(self._token_ids)
        return new

    def _new_text(self) -> str:
        known = self._decoded(self._token_ids[self._context : self._told])
        return self._decoded(self._token_ids[self._context :])[len(known) :]

    def _decoded(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=self._skips))


class StopTexts:
    """Passes text on up to the first of some stop texts, which may come in pieces."""

    def __init__(self, stops: Sequence[str], *, kept: Sequence[str] = ()) -> None:
        """Wait for the first of `stops`, or of `kept`, which is passed on as well."""
        self._stops = (*stops, *kept)
        self._kept = frozenset(kept)
        self._held = ""
        self.is_met = False

    def read(self, text: str) -> str:
        """What of `text`, and of what was held back before, is not the beginning of a stop."""
        self._held += text
        found = [(self._held.find(stop), stop) for stop in self._stops if stop in self._held]
        if found:
            self.is_met = True
            place, stop = min(found)
            passed = self._held[: place + len(stop) * (stop in self._kept)]
            self._held = ""
            return passed
        keep = self._unsure()
        passed, self._held = self._held[: len(self._held) - keep], self._held[-keep:] * bool(keep)
        return passed

    def rest(self) -> str:
        """What was held back, where no stop came of it."""
        rest, self._held = self._held, ""
        return rest

    def _unsure(self) -> int:
        """Length of the longest end of the text that begins a stop."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0

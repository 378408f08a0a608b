"""One answer as it is sampled: from tokens to text, log-probs and finish reason.

Text grows token by token and ends at a stop text. A token need not be whole characters, and its
text may depend on the one before it; so new text is the difference of two decodings that begin a
few tokens back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from espalier.rollout.engines.engine import Completion, Sampling

FinishReason = Literal["stop", "length"]
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer decodes an incomplete character to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOrder:
    """One answer to be sampled."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    stops: tuple[str, ...] = ()
    """Texts that end the answer before themselves."""
    kept_stops: tuple[str, ...] = ()
    """Texts that end the answer with themselves."""
    stop_ids: frozenset[int] = frozenset()
    """Token ids that end the answer, beside the policy's own."""
    ignores_end: bool = False
    """Whether to sample on past the policy's own stop tokens."""
    skips_special_tokens: bool = True
    in_pieces: bool = False
    """Whether the answer is streamed."""

    @property
    def is_watched(self) -> bool:
        """Whether each token may end the answer, so that the next must wait for it."""
        return bool(self.stops or self.kept_stops or self.stop_ids)


class Piece(NamedTuple):
    """What was added to an answer."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Nats, of the distribution that was drawn from; at temperature 0 that of temperature 1."""
    finish_reason: FinishReason | None


class ChoiceReader:
    """Turns what an engine samples for one order into pieces of text."""

    def __init__(self, order: SamplingOrder, tokenizer: Decodes) -> None:
        self._order = order
        self._text = GrowingText(tokenizer, skip_special_tokens=order.skips_special_tokens)
        self._stops = StopTexts(order.stops, kept=order.kept_stops)
        self._num_tokens = 0

    def read(self, written: Completion) -> Piece:
        """The piece that `written` adds; tokens behind the end of the answer are left out."""
        text, count, is_over = "", len(written.token_ids), False
        if self._order.is_watched:
            count = 0
            while count < len(written.token_ids) and not is_over:
                token_id = written.token_ids[count]
                text += self._stops.read(self._text.read([token_id]))
                is_over = self._stops.is_met or token_id in self._order.stop_ids
                count += 1
        else:
            text = self._text.read(written.token_ids)
        self._num_tokens += count
        reason = self._reason(written, count, is_over=is_over)
        if reason is not None and not self._stops.is_met:
            text += self._stops.read(self._text.rest())
            text += self._stops.rest()
        return Piece(text, written.token_ids[:count], written.logprobs[:count], reason)

    def _reason(self, written: Completion, count: int, *, is_over: bool) -> FinishReason | None:
        ended = written.stopped and not self._order.ignores_end and count == len(written.token_ids)
        if is_over or ended:
            return "stop"
        return "length" if self._num_tokens >= self._order.max_tokens else None


class Decodes(Protocol):
    """The method of a tokenizer that is needed here."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str | list[str]:
        """The text of one list of tokens."""
        ...


class GrowingText:
    """Decodes tokens as they come; text that was returned never changes."""

    def __init__(self, tokenizer: Decodes, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skips = skip_special_tokens
        self._token_ids: list[int] = []
        self._context = 0
        """Where both decodings begin."""
        self._told = 0
        """Tokens whose text was returned."""

    def read(self, token_ids: Sequence[int]) -> str:
        """The text that the tokens add; an incomplete character is held back."""
        self._token_ids.extend(token_ids)
        new = self._new_text()
        if not new or new.endswith(_UNFINISHED):
            return ""
        self._context, self._told = self._told, len(self._token_ids)
        return new

    def rest(self) -> str:
        """The text that was held back."""
        new = self._new_text()
        self._context = self._told = len(self._token_ids)
        return new

    def _new_text(self) -> str:
        known = self._decoded(self._token_ids[self._context : self._told])
        return self._decoded(self._token_ids[self._context :])[len(known) :]

    def _decoded(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=self._skips))


class StopTexts:
    """Passes text on up to the first stop text, which may arrive in pieces."""

    def __init__(self, stops: Sequence[str], *, kept: Sequence[str] = ()) -> None:
        """Wait for the first of `stops`, or of `kept`, which is passed on as well."""
        self._stops = (*stops, *kept)
        self._kept = frozenset(kept)
        self._held = ""
        self.is_met = False

    def read(self, text: str) -> str:
        """The text that may be passed on: all but what may begin a stop text."""
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
        """The text that was held back, where no stop text came of it."""
        rest, self._held = self._held, ""
        return rest

    def _unsure(self) -> int:
        """Length of the longest suffix of the held text that begins a stop text."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0

"""One answer while it is sampled: turns tokens into text, log-probs and a finish reason.

Text grows token by token and ends at a stop text. A token may be part of a character, and its text
may depend on the token before it; so new text is the difference of two decodings that begin a few
tokens back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from espalier.rollout.engines.engine import Completion, Sampling

FinishReason = Literal["stop", "length"]
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""Character that a tokenizer decodes an incomplete character to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOrder:
    """One answer to be sampled."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    stops: tuple[str, ...] = ()
    """Texts that end the answer and are left out of it."""
    kept_stops: tuple[str, ...] = ()
    """Texts that end the answer and are part of it."""
    stop_ids: frozenset[int] = frozenset()
    """Token ids that end the answer, besides the policy's own."""
    ignores_end: bool = False
    """Whether sampling continues past the policy's own stop tokens."""
    skips_special_tokens: bool = True
    in_pieces: bool = False
    """Whether the answer is streamed."""

    @property
    def is_watched(self) -> bool:
        """Whether each token must be checked before the next is sampled: it may end the answer."""
        return bool(self.stops or self.kept_stops or self.stop_ids)


class Piece(NamedTuple):
    """New text and tokens of an answer."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probs in nats under the sampling distribution; at temperature 0, under temperature 1."""
    finish_reason: FinishReason | None


class ChoiceReader:
    """Turns the tokens that an engine samples for one order into pieces of text."""

    def __init__(self, order: SamplingOrder, tokenizer: Decodes) -> None:
        self._order = order
        self._text = GrowingText(tokenizer, skip_special_tokens=order.skips_special_tokens)
        self._stops = StopTexts(order.stops, kept=order.kept_stops)
        self._num_tokens = 0

    def read(self, written: Completion) -> Piece:
        """The piece that `written` adds; tokens after the end of the answer are left out."""
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
    """A tokenizer's method that turns token ids into text."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str | list[str]:
        """The text of one list of tokens."""
        ...


class GrowingText:
    """Incremental decoder of tokens; text that was returned never changes."""

    def __init__(self, tokenizer: Decodes, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skips = skip_special_tokens
        self._token_ids: list[int] = []
        self._context = 0
        """Index of the token at which both decodings begin."""
        self._returned = 0
        """Number of tokens whose text was returned."""

    def read(self, token_ids: Sequence[int]) -> str:
        """The text that the tokens add; an incomplete character is held back."""
        self._token_ids.extend(token_ids)
        new = self._new_text()
        if not new or new.endswith(_UNFINISHED):
            return ""
        self._context, self._returned = self._returned, len(self._token_ids)
        return new

    def rest(self) -> str:
        """The text that was held back."""
        new = self._new_text()
        self._context = self._returned = len(self._token_ids)
        return new

    def _new_text(self) -> str:
        known = self._decoded(self._token_ids[self._context : self._returned])
        return self._decoded(self._token_ids[self._context :])[len(known) :]

    def _decoded(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=self._skips))


class StopTexts:
    """Filter that passes text up to the first stop text, which may arrive in pieces."""

    def __init__(self, stops: Sequence[str], *, kept: Sequence[str] = ()) -> None:
        """Look for the first of `stops` or `kept`; a text of `kept` is passed on, too."""
        self._stops = (*stops, *kept)
        self._kept = frozenset(kept)
        self._held = ""
        self.is_met = False

    def read(self, text: str) -> str:
        """The text that can be passed on; a possible beginning of a stop text is held back."""
        self._held += text
        found = [(self._held.find(stop), stop) for stop in self._stops if stop in self._held]
        if found:
            self.is_met = True
            begin, stop = min(found)
            passed = self._held[: begin + len(stop) * (stop in self._kept)]
            self._held = ""
            return passed
        # hold back the longest end of the text with which a stop text may begin
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        keep = min(longest, len(self._held))
        while keep and not any(stop.startswith(self._held[-keep:]) for stop in self._stops):
            keep -= 1
        passed, self._held = self._held[: len(self._held) - keep], self._held[-keep:] * bool(keep)
        return passed

    def rest(self) -> str:
        """The text that is still held back; call it at the end of the answer."""
        rest, self._held = self._held, ""
        return rest

"""One answer as it is written: from sampled tokens to text, log-probs, and why it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from espalier.rollout.engines.engine import Completion, Sampling
from espalier.serving.growing_text import Decodes, GrowingText, StopTexts

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One answer to be written."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    stops: tuple[str, ...] = ()
    """Texts that end the answer before themselves."""
    kept_stops: tuple[str, ...] = ()
    """Texts that end the answer with themselves."""
    stop_ids: frozenset[int] = frozenset()
    """Beside the policy's own."""
    ignores_end: bool = False
    """Whether the policy's own stop tokens end nothing."""
    skips_special_tokens: bool = True
    in_pieces: bool = False
    """Whether tokens are wanted as they come."""

    @property
    def is_watched(self) -> bool:
        """Whether each token has to be looked at before the next is worth sampling."""
        return bool(self.stops or self.kept_stops or self.stop_ids)


class Piece(NamedTuple):
    """What was added to an answer."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Nats, of the distribution that was drawn from; at temperature 0 that of temperature 1."""
    finish_reason: FinishReason | None


class ChoiceReader:
    """Reads what an engine writes for one order."""

    def __init__(self, order: Order, tokenizer: Decodes) -> None:
        self._order = order
        self._text = GrowingText(tokenizer, skip_special_tokens=order.skips_special_tokens)
        self._stops = StopTexts(order.stops, kept=order.kept_stops)
        self._num_tokens = 0

    def read(self, written: Completion) -> Piece:
        """What of `written` belongs to the answer; tokens after its end do not."""
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

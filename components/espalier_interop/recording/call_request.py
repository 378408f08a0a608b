"""A call's request and answer, in the same form for every wire format."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from espalier.records import Message
from espalier.records.message import ToolSpec
from espalier.wire.requests import Refusal

Json: TypeAlias = dict[str, Any]
WireName = Literal["chat", "responses", "messages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequest:
    """One request, parsed and checked."""

    model: str
    """The model name that the agent sent; the attempt's policy answers whatever it is."""
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    offers_calls: bool = True
    """Whether calls are answered as calls; with tool_choice "none" they are text."""
    one_call: bool = False
    """Whether the answer has only the first call of a message."""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stream: bool = False
    tells_usage: bool = False
    """Whether a stream of the chat format ends with the token usage."""
    tells_token_ids: bool = False
    """Whether an answer of the chat format has the token ids, in vLLM's fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer, as it is recorded."""

    answer_id: str
    created: int
    """Unix time."""
    said: Message
    stopped: bool
    """False if it was cut off at its token limit."""
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]


Remembered: TypeAlias = Callable[[str], tuple[Message, ...]]
"""Maps the id of an earlier answer to its conversation, the answer included; raises `Refusal`."""


class WireFormat(Protocol):
    """How requests are read and answers are written; one module each in `formats`."""

    name: WireName

    def read(self, body: bytes, remembered: Remembered) -> CallRequest:
        """Read a request.

        Raises:
            Refusal: the body is no such request, or needs something that is not supported.
        """
        ...

    def whole(self, asked: CallRequest, answer: Answer) -> Json:
        """Return the answer as one object."""
        ...

    def events(self, asked: CallRequest, answer: Answer) -> Iterable[bytes]:
        """Return the answer as server-sent events."""
        ...

    def refused(self, refusal: Refusal) -> Json:
        """Return an error, as clients of this format read it."""
        ...

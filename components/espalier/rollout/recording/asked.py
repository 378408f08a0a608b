"""What a call asks for and what it is answered, the same in every wire format."""

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
class Asked:
    """One request, read and checked."""

    model: str
    """As the agent calls it: whatever it says, the attempt's policy answers."""
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    offers_calls: bool = True
    """Whether calls are answered as calls; with tool_choice "none" they are text."""
    one_call: bool = False
    """Whether the answer has the first call of a message alone."""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stream: bool = False
    tells_usage: bool = False
    """Whether a stream of the chat format ends with the usage."""
    tells_token_ids: bool = False
    """Whether an answer of the chat format has the token ids, where vLLM puts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer, as it is recorded."""

    answer_id: str
    created: int
    """Unix time."""
    said: Message
    stopped: bool
    """False where it was cut off at its most tokens."""
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]


Remembered: TypeAlias = Callable[[str], tuple[Message, ...]]
"""Id of an earlier answer -> its conversation, the answer included; raises `Refusal`."""


class WireFormat(Protocol):
    """How requests and answers are written; one module each in `formats`."""

    name: WireName

    def read(self, body: bytes, remembered: Remembered) -> Asked:
        """Read a request.

        Raises:
            Refusal: it is none, or asks for what is not supported.
        """
        ...

    def whole(self, asked: Asked, answer: Answer) -> Json:
        """The answer as one object."""
        ...

    def events(self, asked: Asked, answer: Answer) -> Iterable[bytes]:
        """The answer as server-sent events."""
        ...

    def refused(self, refusal: Refusal) -> Json:
        """An error, as clients of this format read it."""
        ...

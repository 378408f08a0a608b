"""Chat messages, tool calls, tool schemas, and the actions that messages parse into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self, TypeAlias

from pydantic import BaseModel, Field, JsonValue

JsonObject: TypeAlias = dict[str, JsonValue]
"""A JSON object."""


class ToolCall(BaseModel, frozen=True, extra="forbid"):
    """A parsed request to run a tool."""

    name: str
    arguments: JsonObject = Field(default_factory=dict)
    call_id: str = Field(default="", exclude_if=lambda it: not it)
    """Distinguishes the calls of one message; empty if the dialect has no ids."""


class Message(BaseModel, frozen=True, extra="forbid"):
    """One chat message.

    A policy's message that could be parsed is stored by its parts, in whatever dialect it was
    written; otherwise `content` holds its raw text:

        role assistant   thought "country"   tool_calls search({"query": "lyon country"})
        role tool        content "lyon | country: france"
        role assistant   thought "answer"    content "france"
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thought: str | None = Field(default=None, exclude_if=lambda it: it is None)
    """Reasoning before the call or the answer; None without reasoning."""
    tool_calls: tuple[ToolCall, ...] = Field(default=(), exclude_if=lambda it: not it)
    call_id: str = Field(default="", exclude_if=lambda it: not it)
    """In a tool's message, the id of the call that it answers."""


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """An action with one or more tool calls."""

    calls: tuple[ToolCall, ...]
    thought: str | None = None

    @classmethod
    def one(cls, name: str, arguments: Mapping[str, JsonValue], thought: str | None = None) -> Self:
        """Return a single call, as a demonstration writes it."""
        return cls((ToolCall(name=name, arguments=dict(arguments)),), thought)

    def message(self) -> Message:
        """Return it as a chat message."""
        return Message(role="assistant", thought=self.thought, tool_calls=self.calls)


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """An action that ends the episode with an answer."""

    text: str
    thought: str | None = None

    def message(self) -> Message:
        """Return it as a chat message."""
        return Message(role="assistant", thought=self.thought, content=self.text)


@dataclass(frozen=True, slots=True)
class Malformed:
    """Text that is neither a call nor an answer in the policy's dialect."""

    reason: str
    text: str = ""

    def message(self) -> Message:
        """Return it as a chat message: the raw text."""
        return Message(role="assistant", content=self.text.strip())


Action: TypeAlias = ToolCalls | FinalAnswer | Malformed
"""An argument of `Environment.step`; parsing text into one never raises."""


def action_of(message: Message) -> ToolCalls | FinalAnswer:
    """Return the action of a well-formed message of the assistant."""
    if message.tool_calls:
        return ToolCalls(message.tool_calls, message.thought)
    return FinalAnswer(message.content, message.thought)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as its environment offers it.

    The tag dialect writes a call of `search(query: str)` as `<search> QUERY </search>`; the other
    dialects use only name and JSON schema.
    """

    name: str
    description: str = ""
    parameters: JsonObject = field(default_factory=dict[str, JsonValue])
    """JSON schema of the arguments: an object with its properties."""
    call_tag: str = ""
    """Tag of a call in the tag dialect; empty means the tool's name."""
    result_tag: str = "result"
    """Tag of a result in the tag dialect."""
    takes_code: bool = False
    """Whether its only argument is a program, whose line breaks and angle brackets are kept."""

    @property
    def tag(self) -> str:
        """The tag of a call."""
        return self.call_tag or self.name

    @property
    def text_argument(self) -> str | None:
        """Name of its argument if there is only one, and it is text."""
        properties = self.parameters.get("properties")
        if isinstance(properties, dict) and len(properties) == 1:
            ((name, schema),) = properties.items()
            if isinstance(schema, dict) and schema.get("type") == "string":
                return name
        return None

    def as_function(self) -> JsonObject:
        """Return its entry of `tools` in OpenAI's chat API and in Hugging Face's chat templates."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters,
            },
        }

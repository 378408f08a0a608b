"""What a policy's message comes to once its dialect has parsed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, TypeAlias

from pydantic import JsonValue

from espalier.records.message import Message, ToolCall


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """The policy calls one tool or several."""

    calls: tuple[ToolCall, ...]
    thought: str | None = None

    @classmethod
    def one(cls, name: str, arguments: Mapping[str, JsonValue], thought: str | None = None) -> Self:
        """A single call, as a demonstration writes it."""
        return cls((ToolCall(name=name, arguments=dict(arguments)),), thought)

    def message(self) -> Message:
        """As a chat message."""
        return Message(role="assistant", thought=self.thought, tool_calls=self.calls)


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """The policy ends the episode with an answer."""

    text: str
    thought: str | None = None

    def message(self) -> Message:
        """As a chat message."""
        return Message(role="assistant", thought=self.thought, content=self.text)


@dataclass(frozen=True, slots=True)
class Malformed:
    """Text that is neither a call nor an answer in the policy's dialect."""

    reason: str
    text: str = ""

    def message(self) -> Message:
        """As a chat message: the raw text."""
        return Message(role="assistant", content=self.text.strip())


Action: TypeAlias = ToolCalls | FinalAnswer | Malformed
"""What an environment's `step` takes; parsing text into one never raises."""


def action_of(message: Message) -> ToolCalls | FinalAnswer:
    """The action that a well-formed message of the assistant is."""
    if message.tool_calls:
        return ToolCalls(message.tool_calls, message.thought)
    return FinalAnswer(message.content, message.thought)

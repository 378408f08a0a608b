"""Chat messages and tool calls, in the shape of OpenAI's chat API."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import BaseModel, Field, JsonValue

JsonObject: TypeAlias = dict[str, JsonValue]
"""Keys and values as JSON has them."""


class ToolCall(BaseModel, frozen=True, extra="forbid"):
    """A parsed request to run a tool."""

    name: str
    arguments: JsonObject = Field(default_factory=dict)
    call_id: str = Field(default="", exclude_if=lambda it: not it)
    """Tells the calls of one message apart; empty where the dialect has no ids."""


class Message(BaseModel, frozen=True, extra="forbid"):
    """One chat message.

    A policy's message that could be parsed is stored by its parts, whatever dialect it was written
    in; one that could not keeps its raw text in `content`:

        role assistant   thought "country"   tool_calls search({"query": "lyon country"})
        role tool        content "lyon | country: france"
        role assistant   thought "answer"    content "france"
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thought: str | None = Field(default=None, exclude_if=lambda it: it is None)
    """Reasoning before the call or the answer; None where there was none."""
    tool_calls: tuple[ToolCall, ...] = Field(default=(), exclude_if=lambda it: not it)
    call_id: str = Field(default="", exclude_if=lambda it: not it)
    """Of a tool's message: the call that it answers."""

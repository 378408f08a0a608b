"""JSON calls between tags, as Hermes and Qwen write them; several calls in one message.

    <think>
    country
    </think>

    <tool_call>
    {"name": "search", "arguments": {"query": "lyon country"}}
    </tool_call>

A message without a call is the final answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from espalier.dialects.syntax import (
    TaggedCalls,
    compact_json,
    json_call,
    json_end,
    json_frames,
    listed_tools,
)
from espalier.records import Malformed, ToolCall
from espalier.records.message import ToolSpec


class Hermes(TaggedCalls):
    """The dialect of Hermes and Qwen."""

    name = "hermes"
    escaped = ("</tool_call>",)

    def _value_end(self, text: str, place: int) -> int:
        return json_end(text, place)  # a closing tag inside of its strings ends no call

    def _call(self, block: str, tools: Sequence[ToolSpec]) -> ToolCall | Malformed:
        return json_call(block)

    def _spelled(self, calls: Sequence[ToolCall]) -> str:
        opening, closing = self.call_markers
        written = [compact_json({"name": call.name, "arguments": call.arguments}) for call in calls]
        # a closing tag in an argument would end the call
        return "\n".join(
            f"{opening}\n{call.replace(closing, _ESCAPED_CLOSING)}\n{closing}" for call in written
        )

    def frames(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Return the texts around the arguments of a call, as `write` spells them."""
        return json_frames(tools, arguments_key="arguments")

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """Return how to write calls, for a policy whose chat template does not teach it."""
        opening, closing = self.call_markers
        example = '{"name": <function-name>, "arguments": <args-json-object>}'
        return (
            f"You may call these tools:\n{listed_tools(tools)}\nFor each call write {opening} and "
            f"{closing} around a JSON object: {opening}\n{example}\n{closing}\nA message without "
            "a call is your final answer.\n"
        )


_ESCAPED_CLOSING = "\\u003c/tool_call>"
"""The closing tag inside a JSON string."""

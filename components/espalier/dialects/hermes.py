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
from dataclasses import dataclass

from espalier.dialects.syntax import (
    MAX_PARSED_CHARACTERS,
    THINK,
    answer_or_fault,
    calls_or_fault,
    compact_json,
    json_call,
    listed_tools,
    split_blocks,
    split_thought,
    with_thought,
)
from espalier.records import Action, FinalAnswer, Malformed, ToolCalls
from espalier.records.message import ToolSpec

CALL = ("<tool_call>", "</tool_call>")
RESULT = ("<tool_response>", "</tool_response>")


@dataclass(frozen=True, slots=True)
class Hermes:
    """See the module."""

    name: str = "hermes"
    inline_results: bool = False

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Action:
        """See `Syntax`."""
        if len(text) > MAX_PARSED_CHARACTERS:
            return Malformed("too long", text)
        thought, rest = split_thought(text)
        if any(tag in rest for tag in RESULT):
            return Malformed("writes what the tool would say itself", text)
        blocks, outside = split_blocks(rest, *CALL)
        if any(tag in outside for tag in (*CALL, *THINK)):
            return Malformed("a tag that is opened or closed alone", text)
        if blocks:
            return calls_or_fault([json_call(block) for block in blocks], thought, text)
        return answer_or_fault(rest, thought, text)

    def write(self, action: ToolCalls | FinalAnswer, tools: Sequence[ToolSpec]) -> str:
        """See `Syntax`."""
        if isinstance(action, FinalAnswer):
            return with_thought(action.thought, action.text)
        calls = [
            compact_json({"name": call.name, "arguments": call.arguments}) for call in action.calls
        ]
        blocks = [f"{CALL[0]}\n{call}\n{CALL[1]}" for call in calls]
        return with_thought(action.thought, "\n".join(blocks))

    def markers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """See `Syntax`."""
        return (*THINK, *CALL, *RESULT)

    def stop_texts(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """See `Syntax`."""
        return ()

    def write_result(self, content: str, tools: Sequence[ToolSpec]) -> str:
        """See `Syntax`."""
        return f"{RESULT[0]}\n{content}\n{RESULT[1]}"

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """See `Syntax`."""
        example = '{"name": <function-name>, "arguments": <args-json-object>}'
        return (
            f"You may call these tools:\n{listed_tools(tools)}\nFor each call write {CALL[0]} and "
            f"{CALL[1]} around a JSON object: {CALL[0]}\n{example}\n{CALL[1]}\nA message without a "
            "call is your final answer.\n"
        )

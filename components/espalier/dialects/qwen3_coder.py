"""Calls in Qwen3-Coder's XML: one element a parameter, so that code needs no escapes.

<tool_call>
<function=search>
<parameter=query>
lyon country
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from pydantic import JsonValue

from espalier.dialects.hermes import CALL, RESULT
from espalier.dialects.syntax import (
    MAX_PARSED_CHARACTERS,
    THINK,
    answer_or_fault,
    calls_or_fault,
    compact_json,
    listed_tools,
    named_tool,
    split_blocks,
    split_thought,
    typed_argument,
    with_thought,
)
from espalier.records import Action, FinalAnswer, JsonObject, Malformed, ToolCall, ToolCalls
from espalier.records.message import ToolSpec

_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"([^>\s]+)>\n?(.*?)\n?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Qwen3Coder:
    """See the module."""

    name: str = "qwen3_coder"
    inline_results: bool = False

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Action:
        """See `Syntax`."""
        if len(text) > MAX_PARSED_CHARACTERS:
            return Malformed("too long", text)
        thought, rest = split_thought(text)
        if any(tag in rest for tag in RESULT):
            return Malformed("writes what the tool would say itself", text)
        blocks, outside = split_blocks(rest, *CALL)
        if any(tag in outside for tag in (*CALL, "<function=")):
            return Malformed("a tag that is opened or closed alone", text)
        if blocks:
            return calls_or_fault([_call(block, tools) for block in blocks], thought, text)
        return answer_or_fault(rest, thought, text)

    def write(self, action: ToolCalls | FinalAnswer, tools: Sequence[ToolSpec]) -> str:
        """See `Syntax`."""
        if isinstance(action, FinalAnswer):
            return with_thought(action.thought, action.text)
        return with_thought(action.thought, "\n".join(_written(call) for call in action.calls))

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
        example = _written(ToolCall(name="NAME", arguments={"PARAMETER": "VALUE"}))
        return (
            f"You may call these tools:\n{listed_tools(tools)}\nTo call one, write\n{example}\nA "
            "message without a call is your final answer.\n"
        )


def _call(block: str, tools: Sequence[ToolSpec]) -> ToolCall | Malformed:
    match = _FUNCTION.fullmatch(block)
    if match is None:
        return Malformed("a call without one function element")
    name, body = match[1], match[2]
    blocks, outside = split_blocks(body, "<parameter=", "</parameter>")
    if outside.strip():
        return Malformed(f"text of {name} outside of its parameters")
    tool = named_tool(name, tools)
    arguments: JsonObject = {}
    for block in blocks:
        named = _PARAMETER.fullmatch(block)
        if named is None:
            return Malformed(f"a parameter of {name} without a name")
        arguments[named[1]] = cast("JsonValue", typed_argument(named[2], named[1], tool))
    return ToolCall(name=name, arguments=arguments)


def _written(call: ToolCall) -> str:
    parameters = "".join(
        f"<parameter={name}>\n{value if isinstance(value, str) else compact_json(value)}\n"
        "</parameter>\n"
        for name, value in call.arguments.items()
    )
    return f"{CALL[0]}\n<function={call.name}>\n{parameters}</function>\n{CALL[1]}"

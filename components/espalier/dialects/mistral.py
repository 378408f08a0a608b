"""Calls as Mistral's models write them: one JSON list behind a control token.

[TOOL_CALLS] [{"name": "search", "arguments": {"query": "lyon country"}, "id": "abcdefghi"}]
[TOOL_CALLS]search[ARGS]{"query": "lyon country"}               from tokenizer version 11 on
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from espalier.dialects.syntax import (
    MAX_PARSED_CHARACTERS,
    THINK,
    answer_or_fault,
    call_of_object,
    calls_or_fault,
    compact_json,
    listed_tools,
    parsed_json,
    split_thought,
    with_thought,
)
from espalier.records import Action, FinalAnswer, Malformed, ToolCall, ToolCalls
from espalier.records.message import ToolSpec

TOOL_CALLS, ARGS = "[TOOL_CALLS]", "[ARGS]"
_RESULT = ("[TOOL_RESULTS]", "[/TOOL_RESULTS]")
_NAMED = re.compile(r"\s*([\w.-]+)\s*\[ARGS\](.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Mistral:
    """See the module."""

    name: str = "mistral"
    inline_results: bool = False

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Action:
        """See `Syntax`."""
        if len(text) > MAX_PARSED_CHARACTERS:
            return Malformed("too long", text)
        thought, rest = split_thought(text)
        if any(tag in rest for tag in _RESULT):
            return Malformed("writes what the tool would say itself", text)
        before, marker, body = rest.partition(TOOL_CALLS)
        if not marker:
            return answer_or_fault(rest, thought, text)
        if before.strip() and thought is None:
            thought = before.strip()
        return calls_or_fault(_calls(body), thought, text)

    def write(self, action: ToolCalls | FinalAnswer, tools: Sequence[ToolSpec]) -> str:
        """See `Syntax`."""
        if isinstance(action, FinalAnswer):
            return with_thought(action.thought, action.text)
        calls = [
            {"name": call.name, "arguments": call.arguments}
            | ({"id": call.call_id} if call.call_id else {})
            for call in action.calls
        ]
        return with_thought(action.thought, f"{TOOL_CALLS} {compact_json(calls)}")

    def markers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """See `Syntax`."""
        return (*THINK, TOOL_CALLS, *_RESULT)

    def stop_texts(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """See `Syntax`."""
        return ()

    def write_result(self, content: str, tools: Sequence[ToolSpec]) -> str:
        """See `Syntax`."""
        return f"{_RESULT[0]} {content}{_RESULT[1]}"

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """See `Syntax`."""
        example = f'{TOOL_CALLS} [{{"name": function name, "arguments": {{...}}}}]'
        return (
            f"You may call these functions:\n{listed_tools(tools)}\nTo call some, write {example}. "
            "Any other message is your final answer.\n"
        )


def _calls(body: str) -> list[ToolCall | Malformed]:
    if ARGS in body and not body.lstrip().startswith("["):
        return [_named(part) for part in body.split(TOOL_CALLS)]
    try:
        found = parsed_json(body)
    except ValueError as error:
        return [Malformed(f"calls that are not JSON: {error}")]
    if not isinstance(found, list) or not found:
        return [Malformed("calls that are no list")]
    return [call_of_object(one, arguments_key="arguments") for one in found]


def _named(part: str) -> ToolCall | Malformed:
    match = _NAMED.fullmatch(part)
    if match is None:
        return Malformed(f"a call without a name before {ARGS}")
    try:
        arguments = parsed_json(match[2])
    except ValueError as error:
        return Malformed(f"arguments that are not JSON: {error}")
    return call_of_object({"name": match[1], "arguments": arguments}, arguments_key="arguments")

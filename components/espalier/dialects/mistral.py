"""Calls as Mistral's models write them: one JSON list behind a control token.

[TOOL_CALLS] [{"name": "search", "arguments": {"query": "lyon country"}, "id": "abcdefghi"}]
[TOOL_CALLS]search[CALL_ID]abcdefghi[ARGS]{"query": "lyon country"}       tokenizer version 11
[TOOL_CALLS]search[ARGS]{"query": "lyon country"}                         from version 13 on
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from espalier.dialects.syntax import (
    WRITES_RESULT,
    TurnSyntax,
    answer_or_fault,
    call_of_object,
    calls_or_fault,
    compact_json,
    json_at,
    json_frames,
    listed_tools,
    parsed_json,
)
from espalier.records import Action, Malformed, ToolCall
from espalier.records.message import ToolSpec

TOOL_CALLS, ARGS = "[TOOL_CALLS]", "[ARGS]"
_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*(\w+)\s*)?\[ARGS\]\s*")
_NEXT = re.compile(r"\s*(\[TOOL_CALLS\]|\Z)")


class Mistral(TurnSyntax):
    """The dialect of Mistral's models."""

    name = "mistral"
    call_markers = (TOOL_CALLS,)
    own_marks = (ARGS, "[CALL_ID]")
    result_markers = ("[TOOL_RESULTS]", "[/TOOL_RESULTS]")
    result_layout = "{} {}{}"

    def _read(self, rest: str, thought: str | None, text: str, tools: Sequence[ToolSpec]) -> Action:
        before, marker, body = rest.partition(TOOL_CALLS)
        if any(tag in before for tag in self.result_markers):
            return Malformed(WRITES_RESULT, text)
        if not marker:
            return answer_or_fault(rest, thought, text)
        if before.strip() and thought is None:
            thought = before.strip()
        return calls_or_fault(_calls(body), thought, text)

    def _spelled(self, calls: Sequence[ToolCall]) -> str:
        written = [
            {"name": call.name, "arguments": call.arguments}
            | ({"id": call.call_id} if call.call_id else {})
            for call in calls
        ]
        return f"{TOOL_CALLS} {compact_json(written)}"

    def frames(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Return the texts around the arguments of a call, as `write` spells them."""
        return json_frames(tools, arguments_key="arguments")

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """Return how to write calls, for a policy whose chat template does not teach it."""
        example = f'{TOOL_CALLS} [{{"name": function name, "arguments": {{...}}}}]'
        return (
            f"You may call these functions:\n{listed_tools(tools)}\nTo call some, write {example}. "
            "Any other message is your final answer.\n"
        )


def _calls(body: str) -> list[ToolCall | Malformed]:
    if ARGS in body and not body.lstrip().startswith("["):
        return _named_calls(body)
    try:
        found = parsed_json(body)
    except ValueError as error:
        return [Malformed(f"calls that are not JSON: {error}")]
    if not isinstance(found, list) or not found:
        return [Malformed("calls that are no list")]
    return [call_of_object(one, arguments_key="arguments") for one in found]


def _named_calls(body: str) -> list[ToolCall | Malformed]:
    """Calls by name; a marker inside of their arguments' strings ends none."""
    found: list[ToolCall | Malformed] = []
    place = 0
    while True:
        head = _NAMED.match(body, place)
        if head is None:
            return [*found, Malformed(f"a call without a name before {ARGS}")]
        try:
            arguments, end = json_at(body, head.end())
        except ValueError as error:
            return [*found, Malformed(f"arguments that are not JSON: {error}")]
        named = {"name": head[1], "arguments": arguments, "id": head[2] or ""}
        found.append(call_of_object(named, arguments_key="arguments"))
        behind = _NEXT.match(body, end)
        if behind is None:
            return [*found, Malformed("text behind the arguments of a call")]
        if not behind[1]:
            return found
        place = behind.end()

"""JSON calls as Llama 3 writes them: the message is the call.

    {"name": "search", "parameters": {"query": "lyon country"}}

`<|python_tag|>` may stand before it, and several calls are separated by semicolons.
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
    json_at,
    listed_tools,
    split_thought,
    with_thought,
)
from espalier.records import Action, FinalAnswer, Malformed, ToolCalls
from espalier.records.message import ToolSpec

PYTHON_TAG = "<|python_tag|>"
_SEPARATOR = re.compile(r"\s*(?:;\s*|$)")
_RESULT = ("<|start_header_id|>ipython<|end_header_id|>", "<|eot_id|>")


@dataclass(frozen=True, slots=True)
class Llama3:
    """See the module."""

    name: str = "llama3"
    inline_results: bool = False

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Action:
        """See `Syntax`."""
        if len(text) > MAX_PARSED_CHARACTERS:
            return Malformed("too long", text)
        thought, rest = split_thought(text)
        is_marked = rest.startswith(PYTHON_TAG)
        body = rest.removeprefix(PYTHON_TAG).strip()
        if not is_marked and not body.startswith("{"):
            return answer_or_fault(rest, thought, text)
        try:
            objects = _objects(body)
        except ValueError as error:
            return Malformed(f"a call that is not JSON: {error}", text)
        found = [call_of_object(one, arguments_key="parameters") for one in objects]
        return calls_or_fault(found, thought, text)

    def write(self, action: ToolCalls | FinalAnswer, tools: Sequence[ToolSpec]) -> str:
        """See `Syntax`."""
        if isinstance(action, FinalAnswer):
            return with_thought(action.thought, action.text)
        calls = [
            compact_json({"name": call.name, "parameters": call.arguments}) for call in action.calls
        ]
        return with_thought(action.thought, "; ".join(calls))

    def markers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """See `Syntax`."""
        return (*THINK, PYTHON_TAG, *_RESULT)

    def stop_texts(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """See `Syntax`."""
        return ()

    def write_result(self, content: str, tools: Sequence[ToolSpec]) -> str:
        """See `Syntax`."""
        return f"{_RESULT[0]}\n\n{content}{_RESULT[1]}"

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """See `Syntax`."""
        return (
            f"You may call these functions:\n{listed_tools(tools)}\nTo call one, answer with "
            '{"name": function name, "parameters": dictionary of argument names and values} and '
            "nothing else. Any other message is your final answer.\n"
        )


def _objects(body: str) -> list[object]:
    """The JSON values of a message, separated by semicolons.

    Raises:
        ValueError: something else stands in it.
    """
    found: list[object] = []
    place = 0
    while place < len(body):
        value, place = json_at(body, place)
        found.append(value)
        separator = _SEPARATOR.match(body, place)
        if separator is None:
            raise ValueError("text behind the call")
        place = separator.end()
    return found

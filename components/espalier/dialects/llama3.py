"""JSON calls as Llama 3 writes them: the message is the call.

    {"name": "search", "parameters": {"query": "lyon country"}}

`<|python_tag|>` may stand before it, and several calls are separated by semicolons.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from espalier.dialects.syntax import (
    TurnSyntax,
    answer_or_fault,
    call_of_object,
    calls_or_fault,
    compact_json,
    json_at,
    json_frames,
    listed_tools,
)
from espalier.records import Action, Malformed, ToolCall
from espalier.records.message import ToolSpec

PYTHON_TAG = "<|python_tag|>"
_SEPARATOR = re.compile(r"\s*(?:;\s*|$)")


class Llama3(TurnSyntax):
    """The dialect of Llama 3."""

    name = "llama3"
    call_markers = (PYTHON_TAG,)
    result_markers = ("<|start_header_id|>ipython<|end_header_id|>", "<|eot_id|>")
    result_layout = "{}\n\n{}{}"

    def _read(self, rest: str, thought: str | None, text: str, tools: Sequence[ToolSpec]) -> Action:
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

    def _spelled(self, calls: Sequence[ToolCall]) -> str:
        return "; ".join(
            compact_json({"name": call.name, "parameters": call.arguments}) for call in calls
        )

    def frames(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Return the texts around the arguments of a call, as `write` spells them."""
        return json_frames(tools, arguments_key="parameters")

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """Return how to write calls, for a policy whose chat template does not teach it."""
        return (
            f"You may call these functions:\n{listed_tools(tools)}\nTo call one, answer with "
            '{"name": function name, "parameters": dictionary of argument names and values} and '
            "nothing else. Any other message is your final answer.\n"
        )


def _objects(body: str) -> list[object]:
    """Return the JSON values of a message, separated by semicolons.

    Raises:
        ValueError: the message contains something else.
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

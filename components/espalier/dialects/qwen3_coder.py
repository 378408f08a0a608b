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
from collections.abc import Iterator, Sequence
from typing import cast

from pydantic import JsonValue

from espalier.dialects.syntax import (
    TaggedCalls,
    argument_names,
    compact_json,
    listed_tools,
    named_tool,
    split_blocks,
    typed_argument,
)
from espalier.records import JsonObject, Malformed, ToolCall
from espalier.records.message import ToolSpec

_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"([^>\s]+)>\n?(.*?)\n?", re.DOTALL)
_TAG = re.compile(r"<parameter=([^<>\s]++)>")

_OPENING = "<parameter="
_CLOSING = ("</parameter>", "</function>")


class Qwen3Coder(TaggedCalls):
    """The dialect of Qwen3-Coder, without escapes: no argument can contain the tags of another.

    A parameter that is not closed ends where a line begins with the tag of another, and within a
    line at the tag of a parameter that the tool has and the call gives nowhere else. Any other tag
    within a line is text. A value that quotes the tag of a parameter that was left out is cut.
    """

    name = "qwen3_coder"
    stray_tags = ("<function=",)

    def _call(self, block: str, tools: Sequence[ToolSpec]) -> ToolCall | Malformed:
        match = _FUNCTION.fullmatch(block)
        if match is None:
            return Malformed("a call without one function element")
        return _function_call(match[1], match[2], tools)

    def _spelled(self, calls: Sequence[ToolCall]) -> str:
        opening, closing = self.call_markers
        written = []
        for call in calls:
            parameters = "".join(
                f"<parameter={name}>\n{value if isinstance(value, str) else compact_json(value)}\n"
                "</parameter>\n"
                for name, value in call.arguments.items()
            )
            written.append(f"{opening}\n<function={call.name}>\n{parameters}</function>\n{closing}")
        return "\n".join(written)

    def frames(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Return the texts around the arguments of a call, as `write` spells them."""
        calls = [f"<function={tool.name}>" for tool in tools]
        return (*calls, *(f"<parameter={name}>" for name in argument_names(tools)), *_CLOSING)

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """Return how to write calls, for a policy whose chat template does not teach it."""
        example = self._spelled([ToolCall(name="NAME", arguments={"PARAMETER": "VALUE"})])
        return (
            f"You may call these tools:\n{listed_tools(tools)}\nTo call one, write\n{example}\nA "
            "message without a call is your final answer.\n"
        )


def _function_call(name: str, body: str, tools: Sequence[ToolSpec]) -> ToolCall | Malformed:
    blocks, outside = split_blocks(body, _OPENING, _CLOSING[0])
    if outside.strip():
        return Malformed(f"text of {name} outside of its parameters")
    tool = named_tool(name, tools)
    parts = [part for block in blocks for part in block.split(f"\n{_OPENING}")]
    given = {part.partition(">")[0] for part in parts}
    left_out = set(argument_names([tool] if tool else [])) - given
    arguments: JsonObject = {}
    for parameter in [one for part in parts for one in _cut_at_tags(part, left_out)]:
        named = _PARAMETER.fullmatch(parameter)
        if named is None:
            return Malformed(f"a parameter of {name} without a name")
        arguments[named[1]] = cast("JsonValue", typed_argument(named[2], named[1], tool))
    return ToolCall(name=name, arguments=arguments)


def _cut_at_tags(text: str, names: set[str]) -> Iterator[str]:
    """Cut a text at the first tag of each of these parameters, and remove them from the names."""
    begun = 0
    for tag in _TAG.finditer(text):
        if tag[1] in names:
            names.remove(tag[1])
            yield text[begun : tag.start()]
            begun = tag.start() + len(_OPENING)
    yield text[begun:]

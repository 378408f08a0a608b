"""Calls as a list of Python calls (Llama 4, Llama 3.2's small models): arguments are literals.

[search(query="lyon country"), add(a=1, b=2)]
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from typing import cast

from pydantic import JsonValue

from espalier.dialects.syntax import (
    NOT_LITERAL,
    TurnSyntax,
    answer_or_fault,
    calls_or_fault,
    listed_tools,
    literal_as_json,
    text_argument_names,
)
from espalier.records import Action, JsonObject, Malformed, ToolCall
from espalier.records.message import ToolSpec

_MARKERS = ("<|python_start|>", "<|python_end|>")
"""Markers that Llama 4 may write around its calls."""


class Pythonic(TurnSyntax):
    """The dialect of Llama 4, and of Llama 3.2's small models."""

    name = "pythonic"
    max_characters = 20_000  # Python's own parser reads this, and its cost must stay bounded
    own_marks = _MARKERS
    result_markers = ("<|result|>", "<|end_result|>")
    result_layout = "{} {} {}"

    def _read(self, rest: str, thought: str | None, text: str, tools: Sequence[ToolSpec]) -> Action:
        rest = rest.removeprefix(_MARKERS[0]).removesuffix(_MARKERS[1]).strip()
        if not (rest.startswith("[") and rest.endswith(")]")):
            return answer_or_fault(rest, thought, text)
        try:
            with warnings.catch_warnings():  # a "\d" in a policy's text must print no warning
                warnings.simplefilter("ignore")
                expression = ast.parse(rest, mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            return Malformed(f"calls that are not Python: {type(error).__name__}", text)
        if not isinstance(expression, ast.List):
            return Malformed("calls that are no list", text)
        return calls_or_fault([_call(node) for node in expression.elts], thought, text)

    def _spelled(self, calls: Sequence[ToolCall]) -> str:
        return f"[{', '.join(map(_written, calls))}]"

    def frames(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Return the texts around the arguments of a call, as `write` spells them."""
        texts = [f"{name}='" for name in text_argument_names(tools)]
        return (*(f"[{tool.name}(" for tool in tools), *texts, "')]")

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """Return how to write calls, for a policy whose chat template does not teach it."""
        return (
            f"You may call these functions:\n{listed_tools(tools)}\nTo call some, answer with "
            "[name(argument=value, ...), ...] and nothing else. Any other message is your final "
            "answer.\n"
        )


def _call(node: ast.expr) -> ToolCall | Malformed:
    name = _dotted_name(node.func) if isinstance(node, ast.Call) else ""
    if not isinstance(node, ast.Call) or not name:
        return Malformed("an entry that is no call of a named function")
    if node.args:
        return Malformed("an argument without a name")
    arguments: JsonObject = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            return Malformed("an argument without a name")
        try:
            arguments[keyword.arg] = cast("JsonValue", literal_as_json(keyword.value))
        except NOT_LITERAL as error:
            return Malformed(f"{keyword.arg} is no literal: {type(error).__name__}")
    return ToolCall(name=name, arguments=arguments)


def _dotted_name(node: ast.expr) -> str:
    """Return `a.b.c` as it is written, empty for another expression.

    A loop and no recursion, as the name may be long.
    """
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _written(call: ToolCall) -> str:
    return (
        f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"
    )

"""The spelling of a dialect: how one message of a policy writes thoughts, calls and answers.

A syntax is pure text, knows no task and no tokenizer, and parses whatever a policy writes without
raising. `espalier.dialects.dialect` joins one with a tokenizer and its chat template.
"""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, NoReturn, cast
from urllib.parse import unquote

from espalier.records import Action, FinalAnswer, Malformed, PolicyError, ToolCall, ToolCalls
from espalier.records.message import ToolSpec

THINK = ("<think>", "</think>")
MAX_PARSED_CHARACTERS = 100_000
"""Longer messages are malformed: this bounds the cost of parsing."""
WRITES_RESULT = "writes what the tool would say itself"
MAX_CALLS = 64
"""Most calls of one message; more are malformed. Each is run and its result read: a message may
spell thousands in a few characters ("f(),"), and no task needs as many at one time."""

_THOUGHT = re.compile(r"\s*<think>(.*?)</think>", re.DOTALL)


class Syntax(ABC):
    """The spelling of one dialect."""

    name: ClassVar[str]
    """The name in profiles."""
    inline_results: ClassVar[bool]
    """Whether results are inside the policy's own message, between tags."""
    stops_inside_tokens: ClassVar[bool] = False
    """Whether the text that ends a message may be part of a longer token: some tokenizers have
    tokens of two line breaks."""
    max_characters: ClassVar[int] = MAX_PARSED_CHARACTERS
    own_marks: ClassVar[tuple[str, ...]] = ()
    """Control tokens that a policy of this dialect writes, besides `markers` and `frames`."""
    escaped: ClassVar[tuple[str, ...]] = ()
    """Control texts that `write` escapes inside an argument."""

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Action:
        """Parse one message, without its end-of-turn token; never raises."""
        if len(text) > self.max_characters:
            return Malformed("too long", text)
        return self._parsed(text, tools)

    @abstractmethod
    def _parsed(self, text: str, tools: Sequence[ToolSpec]) -> Action:
        """Parse a message that is not too long."""

    @abstractmethod
    def write(self, action: ToolCalls | FinalAnswer, tools: Sequence[ToolSpec]) -> str:
        """Return the message that `parse` reads as `action`."""

    @abstractmethod
    def markers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Return texts that are single tokens of a tiny policy's tokenizer."""

    def frames(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Return the texts around the arguments of a call, as `write` spells them.

        A tiny policy's tokenizer has each as a single token. Otherwise a word after a quote
        would have other tokens than after a blank, and a small policy does not learn to copy a
        name between the two.
        """
        return ()

    @abstractmethod
    def stop_texts(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Return texts that end a message; () where the end-of-turn token does."""

    def kind_markers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Return the texts of which one follows a thought and tells the kind of the action.

        The last one opens an answer. () if the beginning of an action does not tell its kind.
        """
        return ()

    def defused(self, content: str) -> str:
        """Return a tool's result without text that a policy could take for a turn of its own."""
        return content

    @abstractmethod
    def write_result(self, content: str, tools: Sequence[ToolSpec]) -> str:
        """Return a tool's result as a tiny policy reads it."""

    @abstractmethod
    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """Return how to write calls, for a policy whose chat template does not teach it."""


class TurnSyntax(Syntax):
    """A spelling whose messages end with the end-of-turn token: a thought, then calls or answer."""

    inline_results = False
    call_markers: ClassVar[tuple[str, ...]] = ()
    result_markers: ClassVar[tuple[str, str]]
    result_layout: ClassVar[str] = "{}{}{}"
    """Layout of the first result marker, the result, and the second marker."""

    def _parsed(self, text: str, tools: Sequence[ToolSpec]) -> Action:
        thought, rest = split_thought(text)
        return self._read(rest, thought, text, tools)

    @abstractmethod
    def _read(self, rest: str, thought: str | None, text: str, tools: Sequence[ToolSpec]) -> Action:
        """Parse the part after the thought; `text` is the whole message, for malformed ones."""

    def write(self, action: ToolCalls | FinalAnswer, tools: Sequence[ToolSpec]) -> str:
        """Return the message that `parse` reads as `action`."""
        if isinstance(action, FinalAnswer):
            return with_thought(action.thought, action.text)
        return with_thought(action.thought, self._spelled(action.calls))

    @abstractmethod
    def _spelled(self, calls: Sequence[ToolCall]) -> str:
        """Return all calls of a message as text."""

    def markers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Return texts that are single tokens of a tiny policy's tokenizer."""
        return (*THINK, *self.call_markers, *self.result_markers)

    def stop_texts(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Return texts that end a message; () where the end-of-turn token does."""
        return ()

    def write_result(self, content: str, tools: Sequence[ToolSpec]) -> str:
        """Return a tool's result as a tiny policy reads it."""
        opening, closing = self.result_markers
        return self.result_layout.format(opening, content, closing)


class TaggedCalls(TurnSyntax):
    """A syntax with each call, and each result, between tags (Hermes, Qwen)."""

    call_markers = ("<tool_call>", "</tool_call>")
    result_markers = ("<tool_response>", "</tool_response>")
    result_layout = "{}\n{}\n{}"
    stray_tags: ClassVar[tuple[str, ...]] = THINK
    """Tags, besides those of calls, that are malformed outside a call."""

    def _read(self, rest: str, thought: str | None, text: str, tools: Sequence[ToolSpec]) -> Action:
        opening, closing = self.call_markers
        # a value may be read to the end of the text for each of them
        blocks, outside = split_blocks(rest, opening, closing, self._value_end, most=MAX_CALLS + 1)
        if len(blocks) > MAX_CALLS:
            return _too_many_calls(len(blocks), text)
        if any(tag in outside for tag in self.result_markers):
            return Malformed(WRITES_RESULT, text)
        if any(tag in outside for tag in (*self.call_markers, *self.stray_tags)):
            return Malformed("a tag that is opened or closed alone", text)
        if blocks:
            thought = thought if thought is not None else outside.strip() or None
            return calls_or_fault([self._call(block, tools) for block in blocks], thought, text)
        return answer_or_fault(rest, thought, text)

    def _value_end(self, text: str, place: int) -> int:
        """Return the first place at which the closing tag of the call from `place` on may begin."""
        return place

    @abstractmethod
    def _call(self, block: str, tools: Sequence[ToolSpec]) -> ToolCall | Malformed:
        """Return the call between two tags."""


class Thoughtful(NamedTuple):
    """A message, split into its thought and the rest."""

    thought: str | None
    rest: str


def split_thought(text: str) -> Thoughtful:
    """Split a message after its thought."""
    match = _THOUGHT.match(text)
    if match is None:
        return Thoughtful(None, text.strip())
    return Thoughtful(match[1].strip(), text[match.end() :].strip())


def with_thought(thought: str | None, rest: str) -> str:
    """Return the message that `split_thought` splits."""
    return rest if thought is None else f"<think>\n{thought}\n</think>\n\n{rest}"


class Blocks(NamedTuple):
    """A message, split into the parts between pairs of tags, and the rest."""

    inside: tuple[str, ...]
    outside: str


def split_blocks(
    text: str,
    opening: str,
    closing: str,
    value_end: Callable[[str, int], int] = lambda _text, place: place,
    *,
    most: int = MAX_PARSED_CHARACTERS,
) -> Blocks:
    """Cut a text at each opening tag and the next closing one.

    The time is linear in the text, whatever a policy writes: a regular expression that is tried
    again at every unclosed tag takes 20 s for 100,000 characters.

    Args:
        text: a message, without its thought.
        opening: the opening tag.
        closing: the closing tag.
        value_end: takes the text and the place behind an opening tag; returns the first place where
            the closing tag may begin, since a value may contain its text.
        most: the most blocks; the rest is outside.
    """
    inside: list[str] = []
    outside: list[str] = []
    place = 0
    while len(inside) < most and (start := text.find(opening, place)) >= 0:
        end = text.find(closing, value_end(text, start + len(opening)))
        if end < 0:
            break
        outside.append(text[place:start])
        inside.append(text[start + len(opening) : end])
        place = end + len(closing)
    outside.append(text[place:])
    return Blocks(tuple(inside), "".join(outside))


class DecodedJson(NamedTuple):
    """A JSON value, and the end of its text."""

    value: Any
    end: int


def json_at(text: str, place: int) -> DecodedJson:
    """Return the JSON value whose text begins at `place`.

    Raises:
        ValueError: there is none, or one that cannot be stored: NaN, a number too large for a
            float, half of a surrogate pair, more than 64 levels.
    """
    try:
        value, end = _DECODER.raw_decode(text, place)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    level = [value]
    for _ in range(_MAX_LEVELS):
        level = [below for one in level for below in _entries(one)]
        if not level:
            break
    else:
        raise ValueError("nested too deeply")
    try:
        compact_json(value).encode()
    except UnicodeEncodeError as error:
        raise ValueError("half of a surrogate pair") from error
    return DecodedJson(value, end)


_BLANKS = re.compile(r"\s*")


def json_end(text: str, place: int) -> int:
    """Return the end of the JSON value from `place` on; `place` if there is none."""
    blanks = _BLANKS.match(text, place)
    assert blanks is not None, "no blank matches as well"
    try:
        return json_at(text, blanks.end()).end
    except ValueError:
        return place


def parsed_json(text: str) -> Any:  # noqa: ANN401 (any JSON)
    """Return the value that the whole of `text` spells.

    Raises:
        ValueError: there is none, or one that `json_at` refuses.
    """
    stripped = text.strip()
    value, end = json_at(stripped, 0)
    if end < len(stripped):
        raise ValueError("text behind the value")
    return value


_MAX_LEVELS = 64
"""Most nesting of a value; pydantic refuses to read back values nested about 250 levels deep."""


def _entries(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is too large")
    return value


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant)


def json_call(text: str, *, arguments_key: str = "arguments") -> ToolCall | Malformed:
    """Return a call written as {"name": ..., "arguments": {...}}; arguments may be a JSON text."""
    try:
        found = parsed_json(text)
    except ValueError as error:
        return Malformed(f"a call that is not JSON: {error}")
    return call_of_object(found, arguments_key=arguments_key)


_OTHER_KEY = {"arguments": "parameters", "parameters": "arguments"}


def call_of_object(found: object, *, arguments_key: str) -> ToolCall | Malformed:
    """Return the call that a parsed JSON object describes."""
    if not isinstance(found, dict) or not isinstance(found.get("name"), str) or not found["name"]:
        return Malformed('a call without "name"')
    # other dialects' keys are accepted; without any of them the call has no arguments
    other = _OTHER_KEY[arguments_key]
    arguments = found.get(arguments_key, found.get(other, {}))
    if isinstance(arguments, str):
        try:
            arguments = parsed_json(arguments)
        except ValueError as error:
            return Malformed(f'"{arguments_key}" that are not JSON: {error}')
    if not isinstance(arguments, dict):
        return Malformed(f'"{arguments_key}" that are no object')
    call_id = found.get("id", "")
    return ToolCall(
        name=found["name"], arguments=arguments, call_id=call_id if isinstance(call_id, str) else ""
    )


def calls_or_fault(
    found: Sequence[ToolCall | Malformed], thought: str | None, text: str
) -> ToolCalls | Malformed:
    """Return all calls of a message, or the first fault of one."""
    if len(found) > MAX_CALLS:
        return _too_many_calls(len(found), text)
    calls: list[ToolCall] = []
    for call in found:
        if isinstance(call, Malformed):
            return Malformed(call.reason, text)
        calls.append(call)
    return ToolCalls(tuple(calls), thought) if calls else Malformed("no call", text)


def _too_many_calls(count: int, text: str) -> Malformed:
    return Malformed(f"{count} calls in one message, of at most {MAX_CALLS}", text)


def answer_or_fault(rest: str, thought: str | None, text: str) -> FinalAnswer | Malformed:
    """Return a message without calls as the final answer, unless it is empty."""
    return FinalAnswer(rest, thought) if rest else Malformed("an empty message", text)


def compact_json(value: object) -> str:
    """Return JSON as chat templates write it (`tojson`)."""
    return json.dumps(value, ensure_ascii=False)


def json_frames(tools: Sequence[ToolSpec], *, arguments_key: str) -> tuple[str, ...]:
    """Return `Syntax.frames` of JSON calls: the beginnings of calls and text arguments, the end."""
    calls = [
        compact_json({"name": tool.name, arguments_key: {}}).removesuffix("}}") for tool in tools
    ]
    texts = [f'{compact_json(name)}: "' for name in text_argument_names(tools)]
    return (*calls, *texts, '"}}')


def argument_names(tools: Sequence[ToolSpec]) -> tuple[str, ...]:
    """Return the names of all arguments of the tools, each once."""
    return tuple(dict.fromkeys(name for name, _ in _arguments(tools)))


def text_argument_names(tools: Sequence[ToolSpec]) -> tuple[str, ...]:
    """Return the names of the text arguments, each once."""
    return tuple(dict.fromkeys(name for name, is_text in _arguments(tools) if is_text))


def _arguments(tools: Sequence[ToolSpec]) -> Iterable[tuple[str, bool]]:
    for tool in tools:
        properties = tool.parameters.get("properties")
        for name, schema in properties.items() if isinstance(properties, dict) else ():
            yield name, isinstance(schema, dict) and schema.get("type") == "string"


def listed_tools(tools: Sequence[ToolSpec]) -> str:
    """Return the tools' JSON schemas, one per line."""
    return "\n".join(compact_json(tool.as_function()) for tool in tools)


def typed_argument(text: str, name: str, tool: ToolSpec | None) -> object:
    """Return an argument that was written as plain text, parsed by its schema.

    Text stays text. Anything that is neither JSON nor its Python equivalent stays text as well, and
    the tool refuses it.
    """
    properties: object = tool.parameters.get("properties") if tool else None
    schema: object = properties.get(name) if isinstance(properties, dict) else None
    kinds = _kinds(schema, tool.parameters if tool else {}, set())
    if "string" in kinds:
        return None if text == "null" and "null" in kinds else text
    if "boolean" in kinds and text.strip() in _BOOLEANS:
        return _BOOLEANS[text.strip()]
    try:
        return parsed_json(text)
    except ValueError:
        return _python_literal(text) if kinds & {"array", "object"} else text


_BOOLEANS = {"True": True, "False": False}
_MAX_LITERAL = 20_000
"""Characters of a Python literal: this bounds the cost of its parser."""
NOT_LITERAL = (
    ArithmeticError, ValueError, TypeError, SyntaxError, MemoryError, RecursionError,
)  # fmt: skip
"""Errors of `ast.literal_eval`, and of JSON made of its result, for hostile text."""


def literal_as_json(literal: str | ast.expr) -> object:
    """Return a Python literal as JSON: a tuple becomes a list, a set is refused.

    Raises:
        one of `NOT_LITERAL`: it is no literal, or none that JSON can hold.
    """
    return parsed_json(compact_json(ast.literal_eval(literal)))


def _kinds(schema: object, root: object, followed: set[str], depth: int = 0) -> set[str]:
    """Return the JSON types that a schema allows, including its alternatives and references.

    Args:
        schema: the schema of an argument, or a part of it.
        root: the whole schema, in which references are looked up.
        followed: references that were followed already; each is followed once.
        depth: nesting of `schema`.
    """
    if not isinstance(schema, dict) or depth > _MAX_SCHEMA_DEPTH:
        return set()
    described = cast("dict[str, object]", schema)
    kind = described.get("type")
    kinds = set(cast("list[str]", kind)) if isinstance(kind, list) else set[str]()
    if isinstance(kind, str):
        kinds.add(kind)
    values = described["enum"] if "enum" in described else [described.get("const")]
    if isinstance(values, list):
        kinds |= {_JSON_TYPES[type(value)] for value in values if type(value) in _JSON_TYPES}
    branches = [described.get(key) for key in ("anyOf", "oneOf", "allOf")]
    for branch in [one for found in branches if isinstance(found, list) for one in found]:
        kinds |= _kinds(branch, root, followed, depth + 1)
    reference = described.get("$ref")
    if isinstance(reference, str) and reference not in followed:
        followed.add(reference)
        kinds |= _kinds(_referenced(reference, root), root, followed, depth + 1)
    return kinds


def _referenced(reference: str, root: object) -> object:
    """Return the part of a schema at a pointer such as "#/$defs/Size"; None if there is none."""
    if not reference.startswith("#/"):
        return root if reference == "#" else None
    found = root
    for key in unquote(reference.removeprefix("#/")).split("/"):
        key = key.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = cast("dict[str, object]", found).get(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = cast("list[object]", found)[int(key)]
        else:
            return None
    return found


_MAX_SCHEMA_DEPTH = 8
_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number"}


def _python_literal(text: str) -> object:
    """Return a list or object in Python's spelling as JSON; the text itself if it is none."""
    if len(text) > _MAX_LITERAL:
        return text
    try:
        # a policy's text must not print warnings about its escapes
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return literal_as_json(text.strip())
    except NOT_LITERAL:
        return text


def named_tool(name: str, tools: Sequence[ToolSpec]) -> ToolSpec | None:
    """Return the tool of that name, or None."""
    return next((tool for tool in tools if tool.name == name), None)


def json_called(tool: ToolSpec, body: str, thought: str | None, text: str) -> ToolCalls | Malformed:
    """Return the call of a tool whose arguments are in `body` as a JSON object.

    Args:
        tool: the called tool.
        body: the arguments.
        thought: thought before the call.
        text: the whole message, for malformed ones.
    """
    try:
        arguments = parsed_json(body)
    except ValueError as error:
        return Malformed(f"arguments of {tool.name} that are not JSON: {error}", text)
    if not isinstance(arguments, dict):
        return Malformed(f"arguments of {tool.name} that are no JSON object", text)
    return ToolCalls((ToolCall(name=tool.name, arguments=arguments),), thought)


def required_tool(name: str, tools: Sequence[ToolSpec]) -> ToolSpec:
    """Return the tool of that name, for a dialect that spells calls by it.

    Raises:
        PolicyError: there is no such tool.
    """
    tool = named_tool(name, tools)
    if tool is None:
        known = ", ".join(tool.name for tool in tools) or "none"
        raise PolicyError(f"cannot write a call of {name}, which is no tool; tools: {known}")
    return tool

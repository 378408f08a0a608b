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
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, NoReturn, cast

from espalier.records import Action, FinalAnswer, Malformed, PolicyError, ToolCall, ToolCalls
from espalier.records.message import ToolSpec

THINK = ("<think>", "</think>")
MAX_PARSED_CHARACTERS = 100_000
"""Longer messages are malformed: the parsers' cost stays bounded."""
WRITES_RESULT = "writes what the tool would say itself"
MAX_CALLS = 64
"""Calls of one message; more are malformed. Each is run, and its result read: a message may spell
thousands in a few characters ("f(),"), and no task needs as many side by side."""

_THOUGHT = re.compile(r"\s*<think>(.*?)</think>", re.DOTALL)


class Syntax(ABC):
    """The spelling of one dialect."""

    name: ClassVar[str]
    """As profiles spell it."""
    inline_results: ClassVar[bool]
    """Whether results stand inside the policy's own message, between tags."""
    stops_inside_tokens: ClassVar[bool] = False
    """Whether the text that ends a message may be part of a longer token: tokenizers have tokens of
    two line breaks."""
    max_characters: ClassVar[int] = MAX_PARSED_CHARACTERS
    own_marks: ClassVar[tuple[str, ...]] = ()
    """Beside `markers` and `frames`: what a policy of this dialect writes as control tokens."""
    escaped: ClassVar[tuple[str, ...]] = ()
    """Control texts that `write` escapes where an argument has them."""

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Action:
        """Read one message, without its end-of-turn token; never raises."""
        if len(text) > self.max_characters:
            return Malformed("too long", text)
        return self._parsed(text, tools)

    @abstractmethod
    def _parsed(self, text: str, tools: Sequence[ToolSpec]) -> Action:
        """`parse`, for a message that is not too long."""

    @abstractmethod
    def write(self, action: ToolCalls | FinalAnswer, tools: Sequence[ToolSpec]) -> str:
        """The message that `parse` reads as `action`."""

    @abstractmethod
    def markers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Texts that an embedded policy's tokenizer knows as single tokens."""

    def frames(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Texts around the arguments of a call, as `write` spells them.

        An embedded policy's tokenizer knows each as a single token. Behind a quote a word would be
        other tokens than behind a blank, and a small policy does not learn to copy a name from
        tokens that it reads into tokens that it writes.
        """
        return ()

    @abstractmethod
    def stop_texts(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Texts that end a message once they are written; () where the end-of-turn token does."""

    def kind_markers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Texts one of which follows a thought and says what kind of action it is.

        The last opens an answer. () where the beginning of an action says nothing of its kind.
        """
        return ()

    def defused(self, content: str) -> str:
        """A tool's result without what a policy could take for a turn of its own."""
        return content

    @abstractmethod
    def write_result(self, content: str, tools: Sequence[ToolSpec]) -> str:
        """A tool's result as an embedded policy reads it."""

    @abstractmethod
    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """How to write calls, for a policy whose chat template does not teach it."""


class TurnSyntax(Syntax):
    """A spelling whose messages end with the end-of-turn token: a thought, then calls or answer."""

    inline_results = False
    call_markers: ClassVar[tuple[str, ...]] = ()
    result_markers: ClassVar[tuple[str, str]]
    result_layout: ClassVar[str] = "{}{}{}"
    """Of the first result marker, the result, and the second marker."""

    def _parsed(self, text: str, tools: Sequence[ToolSpec]) -> Action:
        thought, rest = split_thought(text)
        return self._read(rest, thought, text, tools)

    @abstractmethod
    def _read(self, rest: str, thought: str | None, text: str, tools: Sequence[ToolSpec]) -> Action:
        """Read what follows the thought; `text` is the whole message, for what is malformed."""

    def write(self, action: ToolCalls | FinalAnswer, tools: Sequence[ToolSpec]) -> str:
        """See `Syntax`."""
        if isinstance(action, FinalAnswer):
            return with_thought(action.thought, action.text)
        return with_thought(action.thought, self._spelled(action.calls))

    @abstractmethod
    def _spelled(self, calls: Sequence[ToolCall]) -> str:
        """All calls of a message."""

    def markers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """See `Syntax`."""
        return (*THINK, *self.call_markers, *self.result_markers)

    def stop_texts(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """See `Syntax`."""
        return ()

    def write_result(self, content: str, tools: Sequence[ToolSpec]) -> str:
        """See `Syntax`."""
        opening, closing = self.result_markers
        return self.result_layout.format(opening, content, closing)


class TaggedCalls(TurnSyntax):
    """Each call between tags (Hermes, Qwen), and each result as well."""

    call_markers = ("<tool_call>", "</tool_call>")
    result_markers = ("<tool_response>", "</tool_response>")
    result_layout = "{}\n{}\n{}"
    stray_tags: ClassVar[tuple[str, ...]] = THINK
    """Beside those of calls: tags that are malformed outside of a call."""

    def _read(self, rest: str, thought: str | None, text: str, tools: Sequence[ToolSpec]) -> Action:
        opening, closing = self.call_markers
        blocks, outside = split_blocks(rest, opening, closing)
        if any(tag in outside for tag in self.result_markers):
            return Malformed(WRITES_RESULT, text)
        if any(tag in outside for tag in (*self.call_markers, *self.stray_tags)):
            return Malformed("a tag that is opened or closed alone", text)
        if blocks:
            thought = thought if thought is not None else outside.strip() or None
            return calls_or_fault([self._call(block, tools) for block in blocks], thought, text)
        return answer_or_fault(rest, thought, text)

    @abstractmethod
    def _call(self, block: str, tools: Sequence[ToolSpec]) -> ToolCall | Malformed:
        """The call that stands between two tags."""


class Thoughtful(NamedTuple):
    """A message in two parts."""

    thought: str | None
    rest: str


def split_thought(text: str) -> Thoughtful:
    """Cut a message behind its thought."""
    match = _THOUGHT.match(text)
    if match is None:
        return Thoughtful(None, text.strip())
    return Thoughtful(match[1].strip(), text[match.end() :].strip())


def with_thought(thought: str | None, rest: str) -> str:
    """The message that `split_thought` cuts."""
    return rest if thought is None else f"<think>\n{thought}\n</think>\n\n{rest}"


class Blocks(NamedTuple):
    """A message in the parts between pairs of tags, and the rest."""

    inside: tuple[str, ...]
    outside: str


def split_blocks(text: str, opening: str, closing: str) -> Blocks:
    """Cut a text at each opening tag and the next closing one.

    Linear in the text, whatever a policy writes: a pattern that is tried again at every tag that is
    never closed takes 20 s for 100,000 characters.
    """
    inside: list[str] = []
    outside: list[str] = []
    place = 0
    while (start := text.find(opening, place)) >= 0:
        end = text.find(closing, start + len(opening))
        if end < 0:
            break
        outside.append(text[place:start])
        inside.append(text[start + len(opening) : end])
        place = end + len(closing)
    outside.append(text[place:])
    return Blocks(tuple(inside), "".join(outside))


class DecodedJson(NamedTuple):
    """A JSON value, and where its text ends."""

    value: Any
    end: int


def json_at(text: str, place: int) -> DecodedJson:
    """The JSON value whose text begins at `place`.

    Raises:
        ValueError: there is none, or one that cannot be stored: NaN, a number beyond a float, half
            of a surrogate pair, more than 64 levels.
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


def parsed_json(text: str) -> Any:  # noqa: ANN401 (any JSON)
    """The value that the whole of `text` spells.

    Raises:
        ValueError: see `json_at`.
    """
    stripped = text.strip()
    value, end = json_at(stripped, 0)
    if end < len(stripped):
        raise ValueError("text behind the value")
    return value


_MAX_LEVELS = 64
"""Nesting of a value; pydantic refuses to read back what is nested some 250 levels deep."""


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
    """A call written as {"name": ..., "arguments": {...}}; arguments may be JSON in a string."""
    try:
        found = parsed_json(text)
    except ValueError as error:
        return Malformed(f"a call that is not JSON: {error}")
    return call_of_object(found, arguments_key=arguments_key)


_OTHER_KEY = {"arguments": "parameters", "parameters": "arguments"}


def call_of_object(found: object, *, arguments_key: str) -> ToolCall | Malformed:
    """The call that a parsed JSON object describes."""
    if not isinstance(found, dict) or not isinstance(found.get("name"), str) or not found["name"]:
        return Malformed('a call without "name"')
    # the other dialects' key says the same; with none of them the call has no arguments
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
    """All calls of a message, or the first thing that is wrong with one."""
    if len(found) > MAX_CALLS:
        return Malformed(f"{len(found)} calls in one message, of at most {MAX_CALLS}", text)
    calls: list[ToolCall] = []
    for call in found:
        if isinstance(call, Malformed):
            return Malformed(call.reason, text)
        calls.append(call)
    return ToolCalls(tuple(calls), thought) if calls else Malformed("no call", text)


def answer_or_fault(rest: str, thought: str | None, text: str) -> FinalAnswer | Malformed:
    """A message without calls is the final answer, unless it says nothing."""
    return FinalAnswer(rest, thought) if rest else Malformed("an empty message", text)


def compact_json(value: object) -> str:
    """JSON as chat templates write it (`tojson`)."""
    return json.dumps(value, ensure_ascii=False)


def json_frames(tools: Sequence[ToolSpec], *, arguments_key: str) -> tuple[str, ...]:
    """`Syntax.frames` of JSON calls: the beginnings of calls and of text arguments, and the end."""
    calls = [
        compact_json({"name": tool.name, arguments_key: {}}).removesuffix("}}") for tool in tools
    ]
    texts = [f'{compact_json(name)}: "' for name in text_argument_names(tools)]
    return (*calls, *texts, '"}}')


def argument_names(tools: Sequence[ToolSpec]) -> tuple[str, ...]:
    """Names of all arguments of the tools, each once."""
    return tuple(dict.fromkeys(name for name, _ in _arguments(tools)))


def text_argument_names(tools: Sequence[ToolSpec]) -> tuple[str, ...]:
    """Names of the arguments that are text, each once."""
    return tuple(dict.fromkeys(name for name, is_text in _arguments(tools) if is_text))


def _arguments(tools: Sequence[ToolSpec]) -> Iterable[tuple[str, bool]]:
    for tool in tools:
        properties = tool.parameters.get("properties")
        for name, schema in properties.items() if isinstance(properties, dict) else ():
            yield name, isinstance(schema, dict) and schema.get("type") == "string"


def listed_tools(tools: Sequence[ToolSpec]) -> str:
    """One JSON schema a line."""
    return "\n".join(compact_json(tool.as_function()) for tool in tools)


def typed_argument(text: str, name: str, tool: ToolSpec | None) -> object:
    """An argument that was written as plain text, read as its schema says.

    Text stays text, and what is neither JSON nor Python's spelling of the same is left as text, for
    the tool to refuse.
    """
    properties: object = tool.parameters.get("properties") if tool else None
    schema: object = properties.get(name) if isinstance(properties, dict) else None
    kinds = _kinds(schema, tool.parameters.get("$defs") if tool else None)
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
"""Characters of a Python literal: its parser's cost must stay bounded."""
NOT_LITERAL = (
    ArithmeticError, ValueError, TypeError, SyntaxError, MemoryError, RecursionError,
)  # fmt: skip
"""What `ast.literal_eval`, and JSON of its result, raise for hostile text."""


def literal_as_json(literal: str | ast.expr) -> object:
    """A Python literal as JSON has it: a tuple is a list, and a set is refused.

    Raises:
        one of `NOT_LITERAL`: it is no literal, or none that JSON can hold.
    """
    return parsed_json(compact_json(ast.literal_eval(literal)))


def _kinds(schema: object, definitions: object, depth: int = 0) -> set[str]:
    """The JSON types that a schema allows, those of its alternatives and references included."""
    if not isinstance(schema, dict) or depth > _MAX_SCHEMA_DEPTH:
        return set()
    described = cast("dict[str, object]", schema)
    kind = described.get("type")
    kinds = set(cast("list[str]", kind)) if isinstance(kind, list) else set[str]()
    if isinstance(kind, str):
        kinds.add(kind)
    branches = [described.get(key) for key in ("anyOf", "oneOf")]
    for branch in [one for found in branches if isinstance(found, list) for one in found]:
        kinds |= _kinds(branch, definitions, depth + 1)
    reference = described.get("$ref")
    if isinstance(reference, str) and isinstance(definitions, dict):
        kinds |= _kinds(definitions.get(reference.rpartition("/")[2]), definitions, depth + 1)
    return kinds


_MAX_SCHEMA_DEPTH = 8


def _python_literal(text: str) -> object:
    """A list or object as Python spells it, where JSON differs; the text where it is none."""
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
    """The tool of that name, where there is one."""
    return next((tool for tool in tools if tool.name == name), None)


def json_called(tool: ToolSpec, body: str, thought: str | None, text: str) -> ToolCalls | Malformed:
    """The call of a tool whose arguments stand in `body` as a JSON object.

    Args:
        tool: that is called.
        body: the arguments.
        thought: before the call.
        text: the whole message, for what is malformed.
    """
    try:
        arguments = parsed_json(body)
    except ValueError as error:
        return Malformed(f"arguments of {tool.name} that are not JSON: {error}", text)
    if not isinstance(arguments, dict):
        return Malformed(f"arguments of {tool.name} that are no JSON object", text)
    return ToolCalls((ToolCall(name=tool.name, arguments=arguments),), thought)


def required_tool(name: str, tools: Sequence[ToolSpec]) -> ToolSpec:
    """The tool of that name, where a dialect spells calls by it.

    Raises:
        PolicyError: there is none.
    """
    tool = named_tool(name, tools)
    if tool is None:
        known = ", ".join(tool.name for tool in tools) or "none"
        raise PolicyError(f"cannot write a call of {name}, which is no tool; tools: {known}")
    return tool

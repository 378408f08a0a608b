"""The user's own demonstrations and preference pairs: files of JSON lines, and their tokens.

    demonstrations   {"messages": [...], "tools": [...]}              OpenAI's chat format
                     {"prompt": ..., "completion": ...}               TRL's: the latter is imitated
    preferences      {"prompt": ..., "chosen": ..., "rejected": ...}  TRL's, as texts or messages

A row becomes the tokens of an episode in which the policy wrote the assistant's messages: the mask
is 1 on those, end of turn included, and 0 on all else.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, takewhile
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, field_validator

from espalier.chain import OWN_QUESTIONS, OWN_TRACES_FOLDER
from espalier.config import EpisodeConfig, WarmStartConfig
from espalier.curation import Contamination
from espalier.dialects.dialect import Dialect
from espalier.dialects.syntax import MAX_CALLS, THINK, parsed_json, split_thought
from espalier.records import (
    DataError,
    Draft,
    Malformed,
    Message,
    PolicyError,
    Split,
    Task,
    ToolCall,
    action_of,
)
from espalier.records.message import ToolSpec
from espalier.training.demonstrations import encode_ids
from espalier.training.packing import TrainingSequence
from espalier.wire.requests import (
    MAX_TOOLS,
    CalledFunction,
    CallPart,
    ChatMessage,
    OfferedFunction,
    Refusal,
    RequestedTool,
    RequestPart,
    parse,
)


class _Function(CalledFunction):
    @field_validator("arguments", mode="before")
    @classmethod
    def _as_text(cls, arguments: object) -> object:
        """Return the JSON text of arguments: files for TRL have an object, OpenAI's have text."""
        return json.dumps(arguments) if isinstance(arguments, dict) else arguments


class _Call(CallPart):
    function: _Function  # pyright: ignore[reportIncompatibleVariableOverride]


class _Message(ChatMessage):
    ignored = ChatMessage.ignored | {"annotations", "id"}
    tool_calls: list[_Call] = Field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default=[], max_length=MAX_CALLS
    )
    weight: Literal[0, 1] = 1
    """0 in OpenAI's fine-tuning files means that the message is read but not imitated."""


class _OfferedFunction(OfferedFunction):
    strict: bool = False  # pyright: ignore[reportIncompatibleVariableOverride]


class _Tool(RequestedTool):
    function: _OfferedFunction  # pyright: ignore[reportIncompatibleVariableOverride]


def _unpacked(tools: object) -> object:
    """Return the list of tools: files for TRL have it as one JSON text."""
    return parsed_json(tools) if isinstance(tools, str) else tools


class _Text(_Message):
    """A message that the file gives as a plain string."""


def _said_by(role: Literal["user", "assistant"]) -> BeforeValidator:
    """Return a validator that turns a text into the one message of a role."""
    return BeforeValidator(
        lambda given: [_Text(role=role, content=given)] if isinstance(given, str) else given
    )


_Asked = Annotated[list[_Message], _said_by("user")]
_Replied = Annotated[list[_Message], _said_by("assistant")]


class _Row(RequestPart):
    """A line of a file; its other columns are ignored."""

    model_config = ConfigDict(extra="ignore")
    tools: Annotated[list[_Tool], BeforeValidator(_unpacked)] = Field(
        default=[], max_length=MAX_TOOLS
    )
    prompt: _Asked = Field(default=[])


class _Demonstration(_Row):
    messages: list[_Message] = Field(default=[])
    completion: _Replied = Field(default=[])


class _Pair(_Row):
    chosen: _Replied = Field(min_length=1)
    rejected: _Replied = Field(min_length=1)


RowT = TypeVar("RowT", bound=_Row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A conversation up to the last message of the assistant."""

    where: str
    """File and line, for error messages."""
    messages: tuple[Message, ...]
    taught: tuple[bool, ...]
    """For each message, whether the policy learns to write it."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that the row offers; empty if it does not say."""
    ends_as_text: bool = False
    """Whether the last message is raw text that a policy wrote in its dialect."""

    @property
    def questions(self) -> tuple[str, ...]:
        """Return the texts of the user's messages."""
        return tuple(one.content for one in self.messages if one.role == "user")

    @property
    def called(self) -> tuple[str, ...]:
        """Return the names of the tools that it calls, in order."""
        return tuple(call.name for one in self.messages for call in one.tool_calls)


class Pair(NamedTuple):
    """A preference pair: the better and the worse ending of one conversation."""

    chosen: Trace
    rejected: Trace


def check_own_traces(config: WarmStartConfig) -> None:
    """Read the files that a profile names, before a run begins.

    Checks that need the policy's tokenizer or the environment are made by the warm start.

    Raises:
        DataError: a file cannot be read, or one of its lines is no row (the message names it).
    """
    if config.demonstrations is not None:
        read_demonstrations(config.demonstrations)
    if config.preferences is not None:
        read_pairs(config.preferences.path)


def read_demonstrations(path: Path) -> list[Trace]:
    """Read the file of `warm_start.demonstrations`.

    Raises:
        DataError: it cannot be read, or a line is no demonstration (the message names it).
    """
    traces: list[Trace] = []
    for where, row in _rows(path, _Demonstration):
        if bool(row.messages) == bool(row.completion):
            raise DataError(
                f'{where}: a demonstration is {{"messages": [...]}}, or as TRL has it '
                '{"prompt": ..., "completion": ...}; write one of them'
            )
        read = [] if row.messages else row.prompt
        written = row.messages or row.completion
        taught = [False] * len(read) + [one.weight == 1 for one in written]
        traces.append(_trace(where, _messages([*read, *written]), taught, row))
    return traces


def read_pairs(path: Path) -> list[Pair]:
    """Read the file of `warm_start.preferences`.

    Raises:
        DataError: it cannot be read, or a line is no pair (the message names it).
    """
    pairs: list[Pair] = []
    for where, row in _rows(path, _Pair):
        prompt, chosen, rejected = map(_messages, (row.prompt, row.chosen, row.rejected))
        alike = takewhile(lambda two: two[0] == two[1], zip(chosen, rejected, strict=False))
        # data sets repeat the prompt in both endings, or have it only there
        begun = prompt or [one for one, _ in alike]
        if begun == chosen[: len(begun)] == rejected[: len(begun)]:
            chosen, rejected = chosen[len(begun) :], rejected[len(begun) :]
        both = (("chosen", chosen, row.chosen), ("rejected", rejected, row.rejected))
        traces = [
            _trace(
                f"{where}: {name}",
                [*begun, *ending],
                [False] * len(begun) + [True] * len(ending),
                row,
                ends_as_text=isinstance(given[0], _Text),
            )
            for name, ending, given in both
        ]
        pairs.append(Pair(*traces))
    return pairs


def _rows(path: Path, kind: type[RowT]) -> Iterator[tuple[str, RowT]]:
    """Yield each row with its file and line."""
    found = False
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    found = True
                    yield f"{path}, line {number}", _row(path, number, line, kind)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    if not found:
        raise DataError(f"{path}: holds no row")


def _row(path: Path, number: int, line: bytes, kind: type[RowT]) -> RowT:
    try:
        return parse(line, kind, called="it")
    except Refusal as refusal:
        raise DataError(f"{path}, line {number}: {refusal}") from refusal


def _trace(
    where: str,
    messages: Sequence[Message],
    taught: Sequence[bool],
    row: _Row,
    *,
    ends_as_text: bool = False,
) -> Trace:
    written = [place for place, one in enumerate(messages) if one.role == "assistant"]
    if not any(taught[place] for place in written):
        raise DataError(f"{where}: no message of the assistant, so there is nothing to learn")
    kept = messages[: written[-1] + 1]  # messages after the assistant's last one teach nothing
    try:
        ordered = tuple(_ordered(kept))
    except ValueError as error:
        raise DataError(f"{where}: {error}") from error
    return Trace(
        where=where,
        messages=ordered,
        taught=tuple(taught[: len(kept)]),
        tools=tuple(tool.spec() for tool in row.tools),
        ends_as_text=ends_as_text,
    )


def _messages(given: Iterable[_Message]) -> list[Message]:
    return [
        one.as_message() if isinstance(one, _Text) else _as_written(one.as_message())
        for one in given
    ]


def _as_written(message: Message) -> Message:
    """Return a message of the assistant as a parser reads it: thought apart, text stripped."""
    if message.role != "assistant":
        return message
    said, thought = message.content.strip(), message.thought
    beside = thought if message.tool_calls else said
    if beside is not None and beside.lstrip().startswith(THINK[0]):
        own, rest = split_thought(beside)
        if message.tool_calls:
            thought = "\n\n".join(filter(None, (own, rest)))
        else:
            said, thought = rest, thought or own
    return message.model_copy(update={"content": said, "thought": thought})


def _ordered(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages as an episode has them: results in the order of their calls, without ids.

    Raises:
        ValueError: no episode has such messages.
    """
    if messages[0].role == "assistant":
        raise ValueError("it begins with the assistant; put the message that it answers before it")
    place = 0
    while place < len(messages):
        message = messages[place]
        where = f"message {place + 1}"
        place += 1
        if message.role == "tool":
            raise ValueError(f"{where} is a tool result, and the message before has no such call")
        if message.role != "assistant":
            yield message
            continue
        calls = message.tool_calls
        if messages[place - 2].role == "assistant":
            raise ValueError(f"{where} is the assistant's, like the one before; join them")
        if not calls and not message.content:
            raise ValueError(f"{where} of the assistant holds nothing: no text and no call")
        plain = tuple(call.model_copy(update={"call_id": ""}) for call in calls)
        yield message.model_copy(update={"tool_calls": plain})
        if calls and place < len(messages):
            results = list(takewhile(lambda one: one.role == "tool", messages[place:]))
            place += len(results)
            yield from _by_call(calls, results, where)


def _by_call(
    calls: Sequence[ToolCall], results: Sequence[Message], where: str
) -> Iterator[Message]:
    if len(calls) != len(results):
        raise ValueError(f"the {len(calls)} calls of {where} have {len(results)} results")
    ids, answered = [one.call_id for one in calls], [one.call_id for one in results]
    if all((*ids, *answered)):
        if len(set(ids)) < len(ids):
            raise ValueError(f"two calls of {where} have one id")
        if sorted(ids) != sorted(answered):
            raise ValueError(f"the results of {where} have other ids than its calls")
        results = sorted(results, key=lambda one: ids.index(one.call_id))
    for result in results:
        yield result.model_copy(update={"call_id": ""})


# ---------------------------------------------------------------------------------- tokens


def encode_trace(trace: Trace, dialect: Dialect) -> TrainingSequence:
    """Return the tokens of an episode in which the policy wrote the assistant's messages.

    Args:
        trace: a conversation from a file.
        dialect: dialect of the policy, with the environment's tools.

    Raises:
        DataError: it calls an unknown tool, or the dialect has no way to write it.
    """
    known = [tool.name for tool in dialect.tools]
    if unknown := [name for name in trace.called if name not in known]:
        raise DataError(
            f"{trace.where}: calls {unknown[0]}, which is no tool of the environment; it has "
            f"{', '.join(known) or 'none'}. Rename the call, or leave the row out"
        )
    first = next(n for n, one in enumerate(trace.messages) if one.role == "assistant")
    behind = range(first, len(trace.messages))
    pieces: list[tuple[tuple[int, ...], bool]] = []
    try:
        for acts, run in groupby(behind, key=lambda n: trace.messages[n].role == "assistant"):
            places = list(run)
            if acts:
                pieces += [(_written_ids(trace, n, dialect), trace.taught[n]) for n in places]
            else:
                observed = tuple(trace.messages[n] for n in places)
                pieces.append((dialect.result_ids(observed), False))
        return encode_ids(trace.messages[:first], pieces, dialect)
    except PolicyError as error:
        raise DataError(f"{trace.where}: {error}") from error


def _written_ids(trace: Trace, place: int, dialect: Dialect) -> tuple[int, ...]:
    message = trace.messages[place]
    if trace.ends_as_text and place == len(trace.messages) - 1:
        no_tag = dialect.syntax.inline_results and isinstance(
            dialect.parse_text(message.content), Malformed
        )
        if not no_tag:
            return dialect.text_ids(message.content)
    if dialect.syntax.inline_results and len(message.tool_calls) > 1:
        raise PolicyError(
            f"message {place + 1} has {len(message.tool_calls)} calls: dialect "
            f'"{dialect.syntax.name}" writes one call a message'
        )
    action = action_of(message)
    ids = dialect.action_ids(action)
    if isinstance(dialect.parse(ids), Malformed) and action.thought is None:
        # a dialect in which every message begins with a thought
        ids = dialect.action_ids(replace(action, thought=""))
    if isinstance(read := dialect.parse(ids), Malformed) and trace.taught[place]:
        raise PolicyError(
            f'message {place + 1}: dialect "{dialect.syntax.name}" does not read it back '
            f"({read.reason}); write it in other words, or leave the row out"
        )
    return ids


TOO_LONG = "longer_than_an_episode"
LONG_MESSAGE = "longer_message_than_a_turn"
MANY_CALLS = "more_calls_than_turns"
EQUAL = "chosen_equals_rejected"


def unfit(trace: Trace, sequence: TrainingSequence, limits: EpisodeConfig) -> str:
    """Return why no episode of the policy could have such messages; empty if one could."""
    if len(sequence.token_ids) > limits.max_tokens:
        return TOO_LONG
    written = (len(list(run)) for taught, run in groupby(sequence.loss_mask) if taught)
    if max(written) > limits.max_turn_tokens:
        return LONG_MESSAGE
    calling = sum(bool(one.tool_calls) for one in trace.messages)
    return MANY_CALLS if calling > limits.max_turns else ""


class JudgedQuestions:
    """The questions that choose weights and evaluate policies; nothing may be trained on them."""

    def __init__(self, tasks: Mapping[Split, Sequence[Task]], *, reads_symbols: bool) -> None:
        """Store the normalised words of the questions.

        Args:
            tasks: tasks of the splits that nothing may be trained on.
            reads_symbols: whether questions may differ in symbols alone, so that words do not
                identify them.
        """
        asked = {split: [task.question for task in found] for split, found in tasks.items()}
        self._exact = {_line(text): split for split, texts in asked.items() for text in texts}
        # a question counts if a user's message contains it whole
        self._words = None if reads_symbols else Contamination(asked, sys.maxsize)

    def reason_against(self, texts: Iterable[str]) -> str:
        """Return `heldout_question` or `dev_question` if a text contains one; else empty."""
        for text in texts:
            split = self._exact.get(_line(text), "")
            if not split and self._words is not None:
                split = self._words.found_in(text).partition(":")[0]
            if split:
                return f"{split}_question"
        return ""


def _line(text: str) -> str:
    return " ".join(text.split())


@dataclass(slots=True)
class Fit:
    """The rows of a file that are trained on, and the reasons why others are not."""

    path: Path
    sequences: list[TrainingSequence] = field(default_factory=list)
    """One sequence for each demonstration; two for each pair, the chosen one first."""
    questions: list[str] = field(default_factory=list)
    """The user's messages in the rows that are used."""
    used: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def reasons(self) -> str:
        """Return why rows are left out, as text."""
        found = [f"{count} {name}" for name, count in self.left_out.most_common()]
        return ", ".join(found) or "none"

    @property
    def said(self) -> str:
        """Return how many rows are used, as text."""
        return f"{self.path}: {self.used} rows are used; left out: {self.reasons}"

    def add(self, reason: str, traces: Sequence[Trace], row: Sequence[TrainingSequence]) -> None:
        """Add the sequences of a row, or count the reason why it is left out."""
        if reason:
            self.left_out[reason] += 1
            return
        self.used += 1
        self.sequences += row
        self.questions += traces[0].questions

    def require_some(self, limits: EpisodeConfig) -> Fit:
        """Return this object if any row is left.

        Raises:
            DataError: no row is left.
        """
        if not self.used:
            raise DataError(
                f"{self.path}: not one row can be trained on ({self.reasons}). An episode has "
                f"episode.max_tokens = {limits.max_tokens}, a message of the policy "
                f"episode.max_turn_tokens = {limits.max_turn_tokens}, and episode.max_turns = "
                f"{limits.max_turns} messages may call tools: raise what is too small"
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTraces:
    """Reads the user's files as sequences of one policy."""

    dialect_of: Callable[[Trace], Dialect]
    """Returns the policy's dialect, with the tools that a row may call."""
    judged: JudgedQuestions
    limits: EpisodeConfig

    def demonstrations(self, path: Path) -> Fit:
        """Return a file's rows that fit an episode and contain no judged question.

        Raises:
            DataError: a line is no demonstration (the message names it), or no line is left.
        """
        found = Fit(path)
        for trace in read_demonstrations(path):
            sequence = encode_trace(trace, self.dialect_of(trace))
            reason = self.judged.reason_against(trace.questions)
            found.add(reason or unfit(trace, sequence, self.limits), [trace], [sequence])
        return found.require_some(self.limits)

    def pairs(self, path: Path) -> Fit:
        """Return a file's pairs by the same rules; of a rejected ending, only the length counts.

        Raises:
            DataError: a line is no pair (the message names it), or no line is left.
        """
        found = Fit(path)
        for pair in read_pairs(path):
            chosen, rejected = (encode_trace(one, self.dialect_of(one)) for one in pair)
            reason = self.judged.reason_against([*pair.chosen.questions, *pair.rejected.questions])
            reason = reason or unfit(pair.chosen, chosen, self.limits)
            if not reason and len(rejected.token_ids) > self.limits.max_tokens:
                reason = TOO_LONG
            if not reason and chosen == rejected:
                reason = EQUAL
            found.add(reason, pair, [chosen, rejected])
        return found.require_some(self.limits)


def publish_own_traces(draft: Draft, own: Mapping[str, Fit]) -> None:
    """Write counts and questions into the warm start's artifact; nothing without rows."""
    if not own:
        return
    (draft.path / OWN_TRACES_FOLDER).mkdir()
    counts = {
        kind: {"used": fit.used, "left_out": dict(sorted(fit.left_out.items()))}
        for kind, fit in own.items()
    }
    text = json.dumps(counts, indent=1) + "\n"
    (draft.path / OWN_TRACES_FOLDER / "counts.json").write_text(text, encoding="utf-8")
    asked = dict.fromkeys(text for fit in own.values() for text in fit.questions)
    lines = "".join(json.dumps(text) + "\n" for text in asked)
    (draft.path / OWN_QUESTIONS).write_text(lines, encoding="utf-8")
    draft.rows |= {f"own_{kind}": fit.used for kind, fit in own.items()}

"""Reads tasks from BFCL v4's files of rows and answers.

A file is `BFCL_v4_CATEGORY.json`. Its answers are in `possible_answer/` beside it, and the
documents of a conversation's tools in `multi_turn_func_doc/`. Rows are JSON lines despite the
files' suffix. A folder stands for all its files of known categories.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, Field, JsonValue

from espalier.environments.benchmarks import BenchmarkRow, read_rows
from espalier.records import (
    DataError,
    JsonObject,
    Message,
    Task,
    TaskMetadata,
    ToolCall,
    Verifier,
    task_id_of,
)
from espalier.rewards.bfcl import PYTHON_TYPES
from espalier_environments.function_calling.conversations import begun_services
from espalier_environments.function_calling.functions import FUNCTIONS
from espalier_environments.function_calling.made_up import NONE_FITS
from espalier_environments.function_calling.states import (
    APIS,
    DOCUMENTS,
    parameter_names,
    tool_names,
)

_FILE = re.compile(r"BFCL_v\d+_(?P<category>\w+)\.json")
IRRELEVANCE = ("irrelevance", "live_irrelevance")
CALLED = (
    "simple_python", "multiple", "parallel", "parallel_multiple", "live_simple", "live_multiple",
    "live_parallel", "live_parallel_multiple",
)  # fmt: skip
CONVERSATION = "multi_turn_base"
CATEGORIES = (*CALLED, *IRRELEVANCE, CONVERSATION)
_MAX_NAME = 200
"""Most characters of an id or a name, which appear in error messages."""
_MAX_NESTING = 16
"""Deepest nesting of a function's parameters."""


class _Said(BenchmarkRow):
    role: Literal["system", "user", "assistant"]
    content: str


class _Document(BaseModel, frozen=True, extra="ignore"):
    name: Annotated[str, Field(min_length=1, max_length=_MAX_NAME)]
    description: str = ""
    parameters: Annotated[dict[str, JsonValue], AfterValidator(lambda it: _checked(it))]


class _Row(BenchmarkRow):
    id: Annotated[str, Field(min_length=1, max_length=_MAX_NAME)]
    question: Annotated[list[Annotated[list[_Said], Field(min_length=1)]], Field(min_length=1)]


class _CallRow(_Row):
    function: list[_Document]


class _Answers(BenchmarkRow):
    id: str
    ground_truth: list[dict[str, dict[str, list[JsonValue]]]]


class _ConversationRow(_Row):
    initial_config: dict[str, dict[str, JsonValue]]
    involved_classes: Annotated[list[str], Field(min_length=1, max_length=len(APIS))]
    excluded_function: tuple[str, ...] = ()


class _ConversationAnswers(BenchmarkRow):
    id: str
    ground_truth: list[list[str]]


def is_bfcl(path: Path) -> bool:
    """Return whether a file or folder is from BFCL, by its name or its content."""
    if path.is_dir():
        return any(_FILE.fullmatch(one.name) for one in path.glob("BFCL_v*.json"))
    return _FILE.fullmatch(path.name) is not None


def read_bfcl(path: Path, family: str) -> list[Task]:
    """Return the tasks of a file, or of a folder's files of known categories.

    Raises:
        DataError: a row is malformed or has no answer; the message names it.
    """
    if path.is_dir():
        files = [one for one in sorted(path.glob("BFCL_v*.json")) if _category(one) in CATEGORIES]
        return [task for one in files for task in read_bfcl(one, family)]
    category = _category(path)
    if category == CONVERSATION:
        return _conversations(path, family)
    if category in IRRELEVANCE:
        rows = read_rows(path, _CallRow)
        return [_call_task(row, category, None, family) for _, row in rows]
    if category in CALLED:
        return _called(path, category, family)
    raise DataError(
        f"{path}: the category {category or path.name} is not one of those that are read: "
        f"{', '.join(CATEGORIES)}"
    )


def _category(path: Path) -> str:
    match = _FILE.fullmatch(path.name)
    return match["category"] if match else ""


def _called(path: Path, category: str, family: str) -> list[Task]:
    answers = {row.id: row for _, row in read_rows(_answers_of(path), _Answers)}
    tasks: list[Task] = []
    for where, row in read_rows(path, _CallRow):
        if row.id not in answers:
            raise DataError(f"{where}: no answer in {_answers_of(path)} has the id {row.id}")
        gold = answers[row.id].ground_truth
        fault = _gold_fault(gold, row.function)
        if fault:
            raise DataError(f"{_answers_of(path)}, {row.id}: {fault}")
        tasks.append(_call_task(row, category, gold, family))
    return tasks


def _answers_of(path: Path) -> Path:
    return path.parent / "possible_answer" / path.name


def _gold_fault(gold: Sequence[Mapping[str, object]], functions: Sequence[_Document]) -> str:
    offered = {one.name for one in functions}
    if not gold:
        return "ground_truth: no call"
    for call in gold:
        if len(call) != 1:
            return "ground_truth: each entry has one function"
        (name,) = call
        if name not in offered:
            return f"ground_truth: {name[:_MAX_NAME]} is not offered"
    return ""


def _checked(parameters: dict[str, JsonValue], nesting: int = 0) -> dict[str, JsonValue]:
    """Return parameters after checking that the check knows the types of all properties."""
    properties = parameters.get("properties")
    required = parameters.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise ValueError("needs an object `properties` and a list `required`")
    if nesting > _MAX_NESTING:
        raise ValueError(f"more than {_MAX_NESTING} objects inside each other")
    for name, one in properties.items():
        if not isinstance(one, dict) or str(one.get("type")) not in PYTHON_TYPES:
            raise ValueError(f"{name[:_MAX_NAME]}: needs a type of {', '.join(PYTHON_TYPES)}")
        _checked_inside(one, nesting)
    return parameters


def _checked_inside(described: Mapping[str, JsonValue], nesting: int) -> None:
    if nesting > _MAX_NESTING:
        raise ValueError(f"more than {_MAX_NESTING} objects inside each other")
    if "properties" in described:
        _checked({"required": [], **described}, nesting + 1)
    items = described.get("items")
    if isinstance(items, dict):
        _checked_inside(items, nesting + 1)


def _call_task(
    row: _CallRow,
    category: str,
    gold: Sequence[Mapping[str, Mapping[str, list[JsonValue]]]] | None,
    family: str,
) -> Task:
    return Task(
        task_id=task_id_of("heldout", row.id),
        prompt=_messages(row.question[0]),
        environment=family,
        arguments={
            FUNCTIONS: [one.model_dump(mode="json") for one in row.function],
            "category": category,
            "id": row.id,
        },
        verifier=Verifier(
            kind="no_call" if gold is None else "calls",
            gold=(NONE_FITS if gold is None else json.dumps(gold),),
        ),
        metadata=TaskMetadata(
            split="heldout",
            source="bfcl_v4",
            pattern=category,
            difficulty=float(len(gold or ())),
            extra={"kind": category},
        ),
    )


def _messages(said: Sequence[_Said]) -> tuple[Message, ...]:
    return tuple(Message(role=one.role, content=one.content) for one in said)


# ------------------------------------------------------------------------------ conversations


def _conversations(path: Path, family: str) -> list[Task]:
    answers = {row.id: row for _, row in read_rows(_answers_of(path), _ConversationAnswers)}
    folder = path.parent / "multi_turn_func_doc"
    documents: dict[str, list[_Document]] = {}
    tasks: list[Task] = []
    for where, row in read_rows(path, _ConversationRow):
        if row.id not in answers:
            raise DataError(f"{where}: no answer in {_answers_of(path)} has the id {row.id}")
        for name in row.involved_classes:
            if name not in APIS:
                raise DataError(
                    f"{where}: no service is called {name[:_MAX_NAME]}; known: {', '.join(APIS)}"
                )
            if name in documents:
                continue
            read = read_rows(folder / DOCUMENTS[name], _Document)
            documents[name] = [one for _, one in read]
            known = tool_names(APIS[name])
            if unknown := [one.name for one in documents[name] if one.name not in known]:
                raise DataError(f"{folder / DOCUMENTS[name]}: {name} has no tool {unknown[0]}")
        try:
            tasks.append(_conversation(row, answers[row.id], documents, family))
        except (DataError, ValueError) as error:
            raise DataError(f"{where}: {str(error)[:1000]}") from error
    return tasks


def _conversation(
    row: _ConversationRow,
    answers: _ConversationAnswers,
    documents: Mapping[str, Sequence[_Document]],
    family: str,
) -> Task:
    if len(answers.ground_truth) != len(row.question):
        raise DataError(f"{len(answers.ground_truth)} turns of answers to {len(row.question)}")
    gold = [
        [parsed_call(text, row.involved_classes) for text in turn] for turn in answers.ground_truth
    ]
    offered = [
        one
        for name in row.involved_classes
        for one in documents[name]
        if one.name not in row.excluded_function
    ]
    config = {
        name: row.initial_config[name]
        for name in row.involved_classes
        if name in row.initial_config
    }
    begun_services(row.involved_classes, config)
    arguments: JsonObject = {
        FUNCTIONS: [one.model_dump(mode="json") for one in offered],
        "category": CONVERSATION,
        "id": row.id,
        "services": list(row.involved_classes),
        "config": cast("JsonObject", config),
        "turns": ["\n".join(one.content for one in turn) for turn in row.question[1:]],
    }
    written = [[call.model_dump(mode="json") for call in turn] for turn in gold]
    return Task(
        task_id=task_id_of("heldout", row.id),
        prompt=_messages(row.question[0]),
        environment=family,
        arguments=arguments,
        verifier=Verifier(kind="conversation", gold=(json.dumps(written),)),
        metadata=TaskMetadata(
            split="heldout",
            source="bfcl_v4",
            pattern=CONVERSATION,
            difficulty=float(sum(map(len, gold))),
            extra={"kind": CONVERSATION},
        ),
    )


def parsed_call(text: str, services: Sequence[str]) -> ToolCall:
    """Parse a call in Python syntax, such as `cd(folder='documents')`, without evaluating it.

    Raises:
        ValueError: it is not a call of a tool of `services` with literal arguments.
    """
    try:
        found = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"not a Python call: {text[:80]}") from error
    if not isinstance(found, ast.Call) or not isinstance(found.func, ast.Name):
        raise ValueError(f"not a Python call: {text[:80]}")
    name = found.func.id
    kind = next((APIS[one] for one in services if name in tool_names(APIS[one])), None)
    if kind is None:
        raise ValueError(f"{name[:_MAX_NAME]} is not a tool of {', '.join(services)}")
    names = parameter_names(kind, name)
    given = [*zip(names, found.args, strict=False), *((it.arg, it.value) for it in found.keywords)]
    if len(given) < len(found.args) + len(found.keywords) or any(key is None for key, _ in given):
        raise ValueError(f"{name}: more arguments than parameters")
    try:
        arguments: dict[str, Any] = {str(key): ast.literal_eval(one) for key, one in given}
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"{name}: an argument is not a literal") from error
    return ToolCall(name=name, arguments=arguments)

"""Reads API-Bank and ToolRL's own tasks, in ToolRL's file formats.

A row's system text lists the functions and explains how ToolRL's models write calls. Here a policy
gets only the functions, in its own dialect, and the dialogue. Rows of API-Bank have `system`,
`user` and `answer`. ToolRL's rlla has `instruction`, `input` and `output` in the SFT form, and
`prompt` and `reward_model` in the RL form, a parquet file.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import Field, JsonValue

from espalier.environments.benchmarks import BenchmarkRow, read_objects, read_rows
from espalier.records import (
    DataError,
    JsonObject,
    Message,
    Task,
    TaskMetadata,
    Verifier,
    task_id_of,
)
from espalier.rewards.toolrl import called_in
from espalier_environments.function_calling.functions import FUNCTIONS
from espalier_environments.function_calling.made_up import NONE_FITS

_LISTING = re.compile(r"\*\*Available Tools\*\*(?P<tools>.*?)\*\*Steps for Each Turn\*\*", re.S)
_HEAD = re.compile(r"(?P<number>\d+)\. (?P<head>.+)")
_DESCRIPTION, _PARAMETERS, _NAME = "Description: ", "Parameters: ", "Name: "
_ROLE = "You answer the last request of a dialogue; the functions you may call are given.\n"
_TYPES = {
    "str": "string", "string": "string", "int": "integer", "integer": "integer",
    "float": "float", "number": "float", "bool": "boolean", "boolean": "boolean",
    "dict": "dict", "object": "dict",
}  # fmt: skip


class _Call(BenchmarkRow):
    name: str
    parameters: dict[str, JsonValue]


class _ApiBankRow(BenchmarkRow):
    system: str
    user: Annotated[str, Field(min_length=1)]
    answer: Annotated[list[_Call], Field(min_length=1)] | _Call


class _SftRow(BenchmarkRow):
    instruction: str
    input: Annotated[str, Field(min_length=1)]
    output: Annotated[str, Field(min_length=1)]


class _Gold(BenchmarkRow):
    ground_truth: Annotated[str, Field(min_length=1)]


class _Said(BenchmarkRow):
    role: str
    content: str


class _RlRow(BenchmarkRow):
    prompt: list[_Said]
    reward_model: _Gold


def read_toolrl_form(path: Path, family: str) -> list[Task]:
    """Return the tasks of a file; its first row tells whether it is API-Bank or ToolRL.

    Raises:
        DataError: a row is malformed; the message names file and row.
    """
    _, first = next(read_objects(path), ("", dict[str, Any]()))
    if "reward_model" in first:
        return _rl_tasks(path, family)
    if "answer" in first:
        rows = read_rows(path, _ApiBankRow)
        return [
            _api_bank_task(where, number, row, path, family)
            for number, (where, row) in enumerate(rows)
        ]
    tasks: list[Task] = []
    for number, (where, row) in enumerate(read_rows(path, _SftRow)):
        tasks.append(
            _toolrl_task(
                where, f"{path.stem} {number}", row.instruction, row.input, row.output, family
            )
        )
    return tasks


def _api_bank_task(where: str, number: int, row: _ApiBankRow, path: Path, family: str) -> Task:
    answer = row.answer[0] if isinstance(row.answer, list) else row.answer
    level = re.match(r"level-(\d)", path.name)
    kind = f"api_bank_{level[1]}" if level else "api_bank"
    return _task(
        f"{kind} {number}",
        row.user,
        listed_functions(where, row.system),
        Verifier(kind="any_call", gold=(json.dumps([answer.model_dump(mode="json")]),)),
        kind=kind,
        source="api_bank",
        family=family,
    )


def _rl_tasks(path: Path, family: str) -> list[Task]:
    tasks: list[Task] = []
    for number, (where, row) in enumerate(read_rows(path, _RlRow)):
        said = {one.role: one.content for one in row.prompt}
        if not said.get("system") or not said.get("user"):
            raise DataError(f"{where}: prompt: needs a message of the system and one of the user")
        gold = row.reward_model.ground_truth
        tasks.append(
            _toolrl_task(where, f"{path.stem} {number}", said["system"], said["user"], gold, family)
        )
    return tasks


def _toolrl_task(where: str, key: str, system: str, user: str, gold: str, family: str) -> Task:
    gold = gold.rpartition("</think>")[2]  # a thought may mention the tags
    if "<tool_call>" in gold:
        try:
            calls = [_Call.model_validate(one) for one in called_in(gold)]
        except ValueError as error:
            raise DataError(
                f"{where}: the gold answer has a malformed call: {str(error)[:200]}"
            ) from error
        written = json.dumps([call.model_dump(mode="json") for call in calls])
        verifier = Verifier(kind="equal_calls", gold=(written,))
    else:
        verifier = Verifier(
            kind="no_call", gold=(NONE_FITS,)
        )  # the text of a message to the user is not scored
    return _task(
        key,
        user,
        listed_functions(where, system),
        verifier,
        kind="toolrl" if verifier.kind == "equal_calls" else "toolrl_response",
        source="toolrl_rlla",
        family=family,
    )


def _task(  # noqa: PLR0913 (the parts of a task)
    key: str,
    user: str,
    functions: Sequence[JsonObject],
    verifier: Verifier,
    *,
    kind: str,
    source: str,
    family: str,
) -> Task:
    return Task(
        task_id=task_id_of("heldout", f"{source} {key}"),
        prompt=(Message(role="user", content=_ROLE + user),),
        environment=family,
        arguments={FUNCTIONS: list(functions), "category": kind, "id": key},
        verifier=verifier,
        metadata=TaskMetadata(split="heldout", source=source, pattern=kind, extra={"kind": kind}),
    )


def listed_functions(where: str, system: str) -> list[JsonObject]:
    """Return the functions listed in a system text, as documents in BFCL's form.

    Raises:
        DataError: it lists no function, or parameters that cannot be parsed.
    """
    listing = _LISTING.search(system)
    found: list[JsonObject] = []
    head: str | None = None
    lines: list[str] = []
    for line in listing["tools"].split("\n") if listing else ():
        match = _HEAD.fullmatch(line)
        if match and head is None and int(match["number"]) == len(found) + 1:
            head, lines = match["head"], []
        elif head is not None and line.startswith(_PARAMETERS):
            found.append(_document(where, head, lines, line.removeprefix(_PARAMETERS)))
            head = None
        else:
            lines.append(line)
    if not found:
        raise DataError(f"{where}: its system text lists no functions under **Available Tools**")
    return found


def _document(where: str, head: str, lines: Sequence[str], parameters: str) -> JsonObject:
    if head.startswith(_NAME):
        name, described = head.removeprefix(_NAME), "\n".join(lines).removeprefix(_DESCRIPTION)
    else:
        name, _, described = head.partition(":")
        described = "\n".join((described.strip(), *lines))
    properties = _literal(where, name, parameters)
    return {
        "name": name.strip(),
        "description": described.strip(),
        "parameters": {
            "type": "dict",
            "properties": {key: _property(one) for key, one in properties.items()},
            "required": [],  # neither format says which are required
        },
    }


def _literal(where: str, name: str, text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
            raise DataError(f"{where}: the parameters of {name[:200]} cannot be read") from error
    if not isinstance(value, dict):
        raise DataError(f"{where}: the parameters of {name[:200]} are no object")
    return cast("dict[str, Any]", value)


def _property(described: object) -> JsonObject:
    """Return a parameter's schema; a type that BFCL does not have is left to the description."""
    if not isinstance(described, dict):
        return {"description": str(described)}
    given = cast("dict[str, Any]", described)
    kind = str(given.get("type", "")).removesuffix(", optional")
    schema: JsonObject = {"description": str(given.get("description", ""))}
    if plain := _TYPES.get(kind):
        schema["type"] = plain
    elif kind.lower().startswith(("list", "array", "tuple")):
        schema["type"] = "array"
    if given.get("default") not in (None, ""):
        schema["default"] = given["default"]
    return schema

"""What an answer is worth: one rule for each kind of gold answer.

calls         BFCL's check against accepted values
no_call       right if nothing is called
any_call      API-Bank's check as ToolRL has it: a call equals the gold one as a whole
equal_calls   ToolRL: the same calls in any order; `credit = "toolrl"` pays parts of it
conversation  BFCL's check of what a conversation left behind
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from pydantic import TypeAdapter, ValidationError

from espalier.environments.function_calling.conversations import (
    conversation_fault,
    played_turns,
    written_turns,
)
from espalier.environments.function_calling.functions import offered_in
from espalier.records import Task, ToolCall
from espalier.rewards import GoldCall, calls_correctness, calls_fault

Credit = Literal["exact", "toolrl"]

_CALLS = TypeAdapter(tuple[ToolCall, ...])
_MOST = 3.0
"""ToolRL's correctness of calls that are right."""
RIGHT = 1e-3
"""What calls that are right are paid under ToolRL's credit: only they are above 0."""
TOOLRL_SPAN = (-2 * _MOST, RIGHT)
"""ToolRL's correctness, shifted."""


def said_calls(answer: str) -> tuple[ToolCall, ...]:
    """The calls that an answer spells as `written_calls` does; none where it is plain text."""
    try:
        return _CALLS.validate_python(json.loads(answer))
    except (ValidationError, ValueError, RecursionError):
        return ()


def outcome_of(task: Task, calls: Sequence[ToolCall], credit: Credit) -> float:
    """The outcome of the calls of one message, by the names that were offered."""
    is_right = not answer_fault(task, calls)
    if credit == "exact":
        return float(is_right)
    if is_right:
        return RIGHT
    return min(toolrl_correctness(task, calls) - _MOST, -RIGHT)


def answer_fault(task: Task, calls: Sequence[ToolCall]) -> str:
    """What is wrong with the calls of one message, or ""."""
    offered = offered_in(task)
    written = offered.written(calls)
    if task.verifier.kind == "no_call":
        return f"{len(calls)} calls, where nothing fits" if calls else ""
    gold = json.loads(task.verifier.gold[0])
    match task.verifier.kind:
        case "calls":
            return calls_fault(offered.documents, written, gold)
        case "any_call":
            wanted = (gold[0]["name"], gold[0]["parameters"])
            return "" if wanted in [tuple(call) for call in written] else "not the gold call"
        case _:
            found = [{"name": one.name, "parameters": one.arguments} for one in written]
            return "" if calls_correctness(found, gold) >= _MOST else "not the gold calls"


def conversation_outcome(task: Task, answer: str) -> float:
    """The outcome of turns of calls, written as JSON and played on fresh services."""
    turns = written_turns(answer)
    if turns is None:
        return 0.0
    return float(not conversation_fault(task, played_turns(task, turns)))


def toolrl_correctness(task: Task, calls: Sequence[ToolCall]) -> float:
    """ToolRL's correctness, in [-3, 3]; of tasks where nothing fits, -3 for any call."""
    if task.verifier.kind == "no_call":
        return -_MOST if calls else _MOST
    found = [
        {"name": one.name, "parameters": one.arguments} for one in offered_in(task).written(calls)
    ]
    return calls_correctness(
        found, [{"name": name, "parameters": it} for name, it in gold_calls(task)]
    )


def gold_calls(task: Task) -> list[tuple[str, dict[str, Any]]]:
    """The canonical calls of one message, by the names of the documents."""
    if task.verifier.kind == "no_call":
        return []
    gold = json.loads(task.verifier.gold[0])
    if task.verifier.kind != "calls":
        return [(one["name"], one["parameters"]) for one in gold]
    documents = {str(one["name"]): one for one in offered_in(task).documents}
    return [_canonical(documents, one) for one in gold]


def _canonical(
    documents: Mapping[str, Mapping[str, Any]], gold: GoldCall
) -> tuple[str, dict[str, Any]]:
    ((name, accepted),) = gold.items()
    parameters = documents[name]["parameters"]
    required = parameters.get("required", ())
    arguments: dict[str, Any] = {}
    for key, values in accepted.items():
        given = [value for value in values if value != ""]
        if ("" in values and key not in required) or not values:
            continue
        value = given[0] if given else ""
        arguments[key] = _canonical_value(value, parameters["properties"].get(key, {}))
    return name, arguments


def _canonical_value(value: Any, described: Mapping[str, Any]) -> Any:  # noqa: ANN401 (any JSON)
    """A value of an object's keys, each of which has a list of accepted ones."""
    if described.get("type") == "dict" and isinstance(value, dict):
        accepted = cast("dict[str, list[Any]]", value)
        return {key: ones[0] for key, ones in accepted.items() if ones and "" not in ones}
    items = cast("Mapping[str, Any]", described.get("items") or {})
    if items.get("type") == "dict" and isinstance(value, list):
        return [_canonical_value(one, items) for one in cast("list[Any]", value)]
    return value

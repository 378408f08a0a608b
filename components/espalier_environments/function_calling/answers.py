"""The outcome of an answer: one rule for each kind of gold answer.

calls         BFCL's check against accepted values
no_call       right if nothing is called
any_call      ToolRL's form of API-Bank's check: one of the calls equals the gold call
equal_calls   ToolRL: the same calls in any order; `credit = "toolrl"` gives partial credit
conversation  BFCL's check of the state after a conversation
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from pydantic import TypeAdapter, ValidationError

from espalier.records import Task, ToolCall
from espalier.rewards.bfcl import GoldCall, calls_fault
from espalier.rewards.toolrl import calls_correctness
from espalier_environments.function_calling.conversations import (
    conversation_fault,
    played_turns,
    written_turns,
)
from espalier_environments.function_calling.functions import offered_in

Credit = Literal["exact", "toolrl"]

_CALLS = TypeAdapter(tuple[ToolCall, ...])
_MOST = 3.0
"""ToolRL's correctness of right calls."""
RIGHT = 1e-3
"""Outcome of right calls under ToolRL's credit, where only they are above 0."""
TOOLRL_SPAN = (-2 * _MOST, RIGHT)
"""Range of ToolRL's correctness, shifted."""


def said_calls(answer: str) -> tuple[ToolCall, ...]:
    """Return the calls in an answer written by `written_calls`; none for plain text."""
    try:
        return _CALLS.validate_python(json.loads(answer))
    except (ValidationError, ValueError, RecursionError):
        return ()


def outcome_of(task: Task, calls: Sequence[ToolCall], credit: Credit) -> float:
    """Return the outcome of the calls of one message, whose names are the offered ones."""
    is_right = not answer_fault(task, calls)
    if credit == "exact":
        return float(is_right)
    if is_right:
        return RIGHT
    return min(toolrl_correctness(task, calls) - _MOST, -RIGHT)


def answer_fault(task: Task, calls: Sequence[ToolCall]) -> str:
    """Return what is wrong with the calls of one message, or ""."""
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
    """Return the outcome of turns of calls, written as JSON, played on fresh services."""
    turns = written_turns(answer)
    if turns is None:
        return 0.0
    return float(not conversation_fault(task, played_turns(task, turns)))


def toolrl_correctness(task: Task, calls: Sequence[ToolCall]) -> float:
    """Return ToolRL's correctness, in [-3, 3]; if no function fits, -3 for any call."""
    if task.verifier.kind == "no_call":
        return -_MOST if calls else _MOST
    found = [
        {"name": one.name, "parameters": one.arguments} for one in offered_in(task).written(calls)
    ]
    return calls_correctness(
        found, [{"name": name, "parameters": it} for name, it in gold_calls(task)]
    )


def gold_calls(task: Task) -> list[tuple[str, dict[str, Any]]]:
    """Return the canonical calls of one message, by the names of the documents."""
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
    """Return a value; for an object, the first accepted value of each key."""
    if described.get("type") == "dict" and isinstance(value, dict):
        accepted = cast("dict[str, list[Any]]", value)
        return {key: ones[0] for key, ones in accepted.items() if ones and "" not in ones}
    items = cast("Mapping[str, Any]", described.get("items") or {})
    if items.get("type") == "dict" and isinstance(value, list):
        return [_canonical_value(one, items) for one in cast("list[Any]", value)]
    return value

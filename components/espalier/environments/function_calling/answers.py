"""What calls are worth."""
from __future__ import annotations
import json
from collections.abc import Sequence
from espalier.environments.function_calling.functions import offered_in
from espalier.records import Task, ToolCall
from espalier.rewards import calls_fault
from pydantic import TypeAdapter, ValidationError

_CALLS = TypeAdapter(tuple[ToolCall, ...])

def said_calls(answer: str) -> tuple[ToolCall, ...]:
    try:
        return _CALLS.validate_python(json.loads(answer))
    except (ValidationError, ValueError, RecursionError):
        return ()

def outcome_of(task: Task, calls: Sequence[ToolCall], credit: str) -> float:
    offered = offered_in(task)
    gold = [] if task.verifier.kind == "no_call" else json.loads(task.verifier.gold[0])
    return float(not calls_fault(offered.documents, offered.written(calls), gold))

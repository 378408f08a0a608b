"""The reward of tau-bench: the final database, and what the user was told (`calculate_reward`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from pydantic import TypeAdapter, ValidationError

from espalier.records import Task, ToolCall
from espalier_environments.customer_service.database import Database
from espalier_environments.customer_service.domains import final_digest

RESPOND = "respond"
"""tau-bench's name of the action that sends `content` to the user."""

_CALLS = TypeAdapter(tuple[ToolCall, ...])


def gold_actions(task: Task) -> tuple[ToolCall, ...]:
    """Return the calls that lead to the correct database."""
    return _CALLS.validate_json(task.verifier.gold[0])


def outputs_of(task: Task) -> tuple[str, ...]:
    """Return the texts that the user must be told."""
    return tuple(map(str, cast("list[object]", task.arguments.get("outputs", []))))


def is_told(outputs: Sequence[str], replies: Sequence[str]) -> bool:
    """Return whether each output occurs in a reply, ignoring case and commas in the reply."""
    heard = [reply.lower().replace(",", "") for reply in replies]
    return all(any(output.lower() in reply for reply in heard) for output in outputs)


def is_solved(
    task: Task, digest: str, replies: Sequence[str], *, domain: str, database: Database
) -> bool:
    """Return whether a database with that digest, and these replies, solve the task."""
    gold = final_digest(domain, database, gold_actions(task), task)
    return digest == gold and is_told(outputs_of(task), replies)


def written_actions(answer: str) -> tuple[ToolCall, ...] | None:
    """Return the actions in an answer's JSON, messages as calls of `respond`; None if invalid."""
    try:
        return _CALLS.validate_python(json.loads(answer))
    except (ValidationError, ValueError, RecursionError):
        return None


def is_solved_by(
    task: Task, actions: Sequence[ToolCall], *, domain: str, database: Database
) -> bool:
    """Return whether these actions, played on a fresh database, solve the task."""
    replies = [
        str(action.arguments.get("content", "")) for action in actions if action.name == RESPOND
    ]
    digest = final_digest(domain, database, actions, task)
    return is_solved(task, digest, replies, domain=domain, database=database)

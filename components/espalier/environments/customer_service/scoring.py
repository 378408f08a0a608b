"""The reward of tau-bench: the final database, and what the user was told (`calculate_reward`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from pydantic import TypeAdapter, ValidationError

from espalier.environments.customer_service.database import Database
from espalier.environments.customer_service.domains import final_digest
from espalier.records import Task, ToolCall

RESPOND = "respond"
"""tau-bench's name for a message to the user among the actions; its argument is `content`."""

_CALLS = TypeAdapter(tuple[ToolCall, ...])


def gold_actions(task: Task) -> tuple[ToolCall, ...]:
    """The calls after which the database is as it should be."""
    return _CALLS.validate_json(task.verifier.gold[0])


def outputs_of(task: Task) -> tuple[str, ...]:
    """What the user has to be told."""
    return tuple(map(str, cast("list[object]", task.arguments.get("outputs", []))))


def is_told(outputs: Sequence[str], replies: Sequence[str]) -> bool:
    """Whether each output occurs in a reply, in any case and without commas in the reply."""
    heard = [reply.lower().replace(",", "") for reply in replies]
    return all(any(output.lower() in reply for reply in heard) for output in outputs)


def is_solved(
    task: Task, digest: str, replies: Sequence[str], *, domain: str, database: Database
) -> bool:
    """Whether a database with that digest, and these replies, are what the task asks for."""
    gold = final_digest(domain, database, gold_actions(task), task)
    return digest == gold and is_told(outputs_of(task), replies)


def written_actions(answer: str) -> tuple[ToolCall, ...] | None:
    """The actions that an answer spells as JSON, messages as calls of `respond`; None if none."""
    try:
        return _CALLS.validate_python(json.loads(answer))
    except (ValidationError, ValueError, RecursionError):
        return None


def is_solved_by(
    task: Task, actions: Sequence[ToolCall], *, domain: str, database: Database
) -> bool:
    """Whether these actions, played on a fresh database, solve the task."""
    replies = [
        str(action.arguments.get("content", "")) for action in actions if action.name == RESPOND
    ]
    digest = final_digest(domain, database, actions, task)
    return is_solved(task, digest, replies, domain=domain, database=database)

"""The reward of tau-bench: the final database, and what the user was told (`calculate_reward`).

Tasks of the made shop have a further condition, because a reply with all prices and statuses would
tell each of their users what they want: a tool has shown it in the same conversation. Not so
tau-bench's own tasks, some of whose outputs are calculated from what the tools show.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import cast

from pydantic import TypeAdapter, ValidationError

from espalier.records import Task, ToolCall
from espalier_environments.customer_service.database import Database
from espalier_environments.customer_service.domains import final_digest, played

RESPOND = "respond"
"""tau-bench's name of the action that sends `content` to the user."""

MADE_SHOP = "made shop"
"""Source of the tasks of the generated shop."""
_CALLS = TypeAdapter(tuple[ToolCall, ...])


def gold_actions(task: Task) -> tuple[ToolCall, ...]:
    """Return the calls that lead to the correct database."""
    return _CALLS.validate_json(task.verifier.gold[0])


def outputs_of(task: Task) -> tuple[str, ...]:
    """Return the texts that the user must be told."""
    return tuple(map(str, cast("list[object]", task.arguments.get("outputs", []))))


def is_told(outputs: Sequence[str], replies: Sequence[str]) -> bool:
    """Return whether each output stands in a reply, as words or a number of its own.

    Case and commas do not count, nor zeros behind the last decimal: `$327.50` tells 327.5. Parts
    of a time, a range, a ratio, a percentage or a negative number are no numbers of their own.
    tau-bench takes any part of a text: there "100 dollars" tells 10, "I do not know" tells no, and
    an output with a comma can never be told.
    """
    heard = [_plain(reply) for reply in replies]
    patterns = [_pattern(_plain(output)) for output in outputs]
    return all(any(pattern.search(reply) for reply in heard) for pattern in patterns)


def _pattern(wanted: str) -> re.Pattern[str]:
    """What of a reply tells an output; both are plain."""
    number = _NUMBER.fullmatch(wanted)
    if number is None:
        return re.compile(rf"(?<!\w)(?<!\d\.){re.escape(wanted)}(?!\w)(?!\.\d)")
    minus, whole, decimals = number[1], number[2], (number[3] or "").rstrip("0")
    fraction = rf"\.{decimals}0*" if decimals else r"(?:\.0+)?"
    lead = r"-\$?" if minus else r"(?<!\W-)(?<!^-)(?<!\d-)(?<!-\$)"
    return re.compile(
        rf"(?<!\w)(?<!\d[.:/']){lead}{whole}{fraction}(?!\w)(?!\.\d)(?![:/'-]\d)(?! ?%)"
    )


_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?", re.ASCII)
_THOUSANDS = re.compile(r"(?<![\w.])\d{1,3}(?:[ \u00a0\u2009\u202f]\d{3})+(?!\w)")


def _plain(text: str) -> str:
    whole = _THOUSANDS.sub(lambda found: re.sub(r"\s", "", found[0]), text)
    return _MINUS.sub("-", " ".join(whole.lower().translate(_PLAIN).split()))


_PLAIN = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d", "-") | {",": None}
)
"""Commas do not count, and a minus has one sign."""
_MINUS = re.compile(r"\b(?:minus|negative) (?=\$?\.?\d)")


def is_solved(
    task: Task,
    digest: str,
    replies: Sequence[str],
    shown: Sequence[str],
    *,
    domain: str,
    database: Database,
) -> bool:
    """Return whether an episode solved the task: by its final database and its replies.

    Args:
        task: the task.
        digest: of the database as the episode left it.
        replies: what the user was told.
        shown: the results of the calls.
        domain: the task's domain.
        database: as it was before the episode.
    """
    outputs = outputs_of(task)
    if task.metadata.source == MADE_SHOP:
        values = [re.sub(r'["{}\[\]:,]', " ", text) for text in shown]  # without JSON's punctuation
        if not is_told(outputs, values):
            return False
    gold = final_digest(domain, database, gold_actions(task), task)
    return digest == gold and is_told(outputs, replies)


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
    digest, shown = played(domain, database, actions, task)
    return is_solved(task, digest, replies, shown, domain=domain, database=database)

"""Tasks in tau-bench's format (Yao et al. 2024, arXiv:2406.12045; sierra-research/tau-bench).

A file is a JSON array of {user_id, instruction, actions: [{name, kwargs}], outputs}: what the
simulated user wants, the calls that change the database accordingly, and the texts that the user
must be told. `wiki.md` is the company policy that the agent reads.
"""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, JsonValue

from espalier.environments.benchmarks import BenchmarkRow, benchmark_tasks, read_rows
from espalier.environments.episode import written_calls
from espalier.records import (
    DataError,
    JsonObject,
    Message,
    Split,
    Task,
    TaskMetadata,
    ToolCall,
    Verifier,
    task_id_of,
)
from espalier_environments.customer_service.database import Database
from espalier_environments.customer_service.domains import domain_in, domain_tools

FILES: dict[Split, str] = {
    "train": "tasks_train.json",
    "dev": "tasks_dev.json",
    "heldout": "tasks_test.json",
}


class _TauAction(BenchmarkRow):
    name: str
    kwargs: JsonObject


class TauRow(BenchmarkRow):
    """A task in the form of the file."""

    user_id: str = Field(min_length=1)
    instruction: str = Field(min_length=1)
    actions: list[_TauAction]
    outputs: list[str]


def read_tau_tasks(path: Path, split: Split, database: Database, *, family: str) -> list[Task]:
    """Return the tasks of a file; the policy text and the tables are in the same folder.

    Raises:
        DataError: the file is malformed, or names a tool or a user that does not exist.
    """
    domain = domain_in(path.parent)
    policy = read_policy(path.parent)
    known = {tool.spec.name for tool in domain_tools(domain)}
    tasks: list[Task] = []
    for where, row in read_rows(path, TauRow):
        if unknown := {action.name for action in row.actions} - known:
            raise DataError(f"{where}: {domain} has no tool {', '.join(sorted(unknown))}")
        if row.user_id not in database.tables["users"]:
            raise DataError(f"{where}: the database has no user {row.user_id!r}")
        key = f"{domain} {path.stem} {len(tasks)}"
        tasks.append(_task(row, split, key, policy, family, database))
    return benchmark_tasks(path, tasks)


def read_policy(folder: Path) -> str:
    """Return the policy text of a domain.

    Raises:
        DataError: the file cannot be read.
    """
    path = folder / "wiki.md"
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: cannot be read ({error}); it is what the agent follows"
        ) from error


def _task(
    one: TauRow, split: Split, key: str, policy: str, family: str, database: Database
) -> Task:
    actions = [ToolCall(name=action.name, arguments=action.kwargs) for action in one.actions]
    domain = key.partition(" ")[0]
    opening = in_first_person(one.instruction)
    return Task(
        task_id=task_id_of(split, key),
        prompt=(Message(role="system", content=policy), Message(role="user", content=opening)),
        environment=family,
        arguments={
            "domain": domain,
            "instruction": one.instruction,
            "outputs": list[JsonValue](one.outputs),
            "facts": user_facts(one.user_id, database, actions),
        },
        verifier=Verifier(kind="final_state", gold=(written_calls(actions),)),
        metadata=TaskMetadata(
            split=split,
            source=key,
            difficulty=len(actions),
            extra={"kind": task_kind(actions)},
        ),
    )


_READING = ("get_", "find_", "list_", "search_", "calculate", "think", "transfer_")


def task_kind(actions: list[ToolCall]) -> str:
    """Return the tool of the first action that changes the database; "inform" if none does."""
    writing = [action.name for action in actions if not action.name.startswith(_READING)]
    return writing[0] if writing else "inform"


def user_facts(user_id: str, database: Database, actions: list[ToolCall]) -> JsonObject:
    """Return what a scripted user knows: from their record, and from the gold actions."""
    user = database.tables["users"][user_id]
    name = user.get("name", {})
    facts = {
        "user_id": user_id,
        "name": f"{name.get('first_name', '')} {name.get('last_name', '')}".strip(),
        "email": user.get("email"),
        "zip": user.get("address", {}).get("zip"),
    }
    for action in actions:
        for argument, value in action.arguments.items():
            if argument in _TOLD and isinstance(value, str):
                facts.setdefault(_TOLD[argument], value)
        if "address1" in action.arguments:
            lines = ("address1", "address2", "city", "state", "country", "zip")
            told = [str(action.arguments[line]) for line in lines if action.arguments.get(line)]
            facts.setdefault("address", ", ".join(told))
    return {fact: value for fact, value in facts.items() if isinstance(value, str) and value}


_TOLD = {
    "order_id": "order",
    "reservation_id": "reservation",
    "reason": "reason",
    "payment_method_id": "payment",
    "payment_id": "payment",
    "cabin": "cabin",
    "insurance": "insurance",
}
"""Argument of a gold action -> the fact of the user that it gives."""

_PERSONS = {
    "you are": "I am", "you're": "I'm", "you were": "I was", "you'd": "I'd", "you've": "I've",
    "you'll": "I'll", "yourself": "myself", "yours": "mine", "your": "my", "you": "I",
}  # fmt: skip
_PERSON = re.compile(rf"\b({'|'.join(_PERSONS)})\b", re.IGNORECASE)


def in_first_person(instruction: str) -> str:
    """Return an instruction ("You want ...") as the user would say it ("I want ...")."""
    return _PERSON.sub(lambda found: _said(found[0]), instruction)


def _said(words: str) -> str:
    said = _PERSONS[words.lower()]
    return said[0].upper() + said[1:] if words[0].isupper() else said

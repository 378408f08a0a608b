"""Conversations over simulated services: the user's turns, and the check of the resulting states.

Upstream's check (`multi_turn_checker.py`): after each turn of the user, every service must be in
the state that the gold calls lead to, and the results of the turn's gold calls must be among the
results so far. If the gold answer makes calls in a turn, the policy must make at least one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

from pydantic import TypeAdapter, ValidationError

from espalier.environments.tools import DescribedTool, ToolError, ToolOutput
from espalier.records import JsonObject, Task, ToolCall
from espalier_environments.function_calling.functions import offered_in
from espalier_environments.function_calling.states import APIS, Api, play, tool_names

_TURNS = TypeAdapter(list[list[ToolCall]])


class Turn(NamedTuple):
    """The results and states after a turn of the user."""

    results: tuple[str, ...]
    """Results of the turn's calls, in order."""
    states: Mapping[str, Mapping[str, Any]]
    """Service -> its state after the turn."""


class Services:
    """The services of one episode, and the results of calls in the current turn."""

    def __init__(self, names: Sequence[str], config: Mapping[str, JsonObject]) -> None:
        self._apis = begun_services(names, config)
        self._owners = {tool: api for api in self._apis.values() for tool in tool_names(type(api))}
        self._results: list[str] = []
        self.turns: list[Turn] = []

    def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolOutput:
        """Play a call and record its result, also if the service refuses it."""
        try:
            owner = self._owners.get(tool)
            if owner is None:
                raise ToolError(f"no tool is named {tool}")
            output = ToolOutput(play(owner, tool, arguments))
        except ToolError as error:
            output = ToolOutput(f"error: {error}", succeeded=False)
        self._results.append(output.content)
        return output

    def end_turn(self) -> None:
        """End the user's turn and record its results and states."""
        states = {name: api.snapshot() for name, api in self._apis.items()}
        self.turns.append(Turn(tuple(self._results), states))
        self._results = []


def begun_services(names: Sequence[str], config: Mapping[str, JsonObject]) -> dict[str, Api]:
    """Return the named services in the states that `config` describes.

    Raises:
        DataError: a value has the wrong type for its service.
    """
    return {name: APIS[name](config.get(name, {})) for name in names}


def services_of(task: Task) -> Services:
    """Return fresh services for a task."""
    names = cast("list[str]", task.arguments["services"])
    return Services(names, cast("Mapping[str, JsonObject]", task.arguments["config"]))


class Conversation:
    """One episode: the services, and a user who says the task's turns one after another."""

    def __init__(self, task: Task) -> None:
        self._services = services_of(task)
        self._waiting = list(cast("list[str]", task.arguments["turns"]))
        offered = offered_in(task)
        self.tools = [
            DescribedTool(spec, partial(self._services.call, name))
            for name, spec in offered.by_document
        ]

    @property
    def turns(self) -> Sequence[Turn]:
        """The completed turns."""
        return self._services.turns

    def reply(self, _said: str) -> str | None:
        """Return the user's next turn, whatever the policy said; None after the last."""
        self._services.end_turn()
        return self._waiting.pop(0) if self._waiting else None


def conversation_fault(task: Task, turns: Sequence[Turn]) -> str:
    """Return what is wrong with the turns of a conversation, or "" if they match the gold."""
    gold = gold_turns(task)
    if len(turns) != len(gold):
        return f"{len(turns)} of {len(gold)} turns"
    expected = _gold_played(
        json.dumps(task.arguments["services"]),
        json.dumps(task.arguments["config"]),
        task.verifier.gold[0],
    )
    so_far: Counter[str] = Counter()
    for number, (turn, wanted) in enumerate(zip(turns, expected, strict=True), start=1):
        so_far.update(turn.results)
        if not wanted.results:
            continue
        if not turn.results:
            return f"turn {number}: no call"
        for name, state in wanted.states.items():
            if turn.states[name] != state:
                return f"turn {number}: {name} is in another state"
        if missing := Counter(wanted.results) - so_far:
            return f"turn {number}: not found out: {next(iter(missing))[:80]}"
    return ""


def gold_turns(task: Task) -> list[list[ToolCall]]:
    """Return the gold calls of each turn."""
    return _TURNS.validate_json(task.verifier.gold[0])


def written_turns(answer: str) -> list[list[ToolCall]] | None:
    """Return the turns of calls in an answer's JSON, a list of calls per turn; None if invalid."""
    try:
        return _TURNS.validate_python(json.loads(answer))
    except (ValidationError, ValueError, RecursionError):
        return None


def played_turns(task: Task, turns: Sequence[Sequence[ToolCall]]) -> Sequence[Turn]:
    """Play turns of calls, by the names of the documents, on fresh services."""
    services = services_of(task)
    for turn in turns:
        for call in turn:
            services.call(call.name, call.arguments)
        services.end_turn()
    return services.turns


@lru_cache(maxsize=512)
def _gold_played(services: str, config: str, gold: str) -> tuple[Turn, ...]:
    begun = Services(json.loads(services), json.loads(config))
    for turn in _TURNS.validate_json(gold):
        for call in turn:
            begun.call(call.name, call.arguments)
        begun.end_turn()
    return tuple(begun.turns)

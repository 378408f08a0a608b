"""Generated conversations: two or three turns of a user over one or two of the eight services.

The calls of every turn are played when it is drawn, and succeed. A turn that names values belongs
to one split, by the digest of its words: held-out users ask for things that no training user asks
for.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any, cast

from espalier.config import SplitsConfig
from espalier.environments.family import dealt_split, make_task
from espalier.records import FinalAnswer, Split, Task, ToolCalls
from espalier_environments.function_calling.config import FunctionCallingConfig
from espalier_environments.function_calling.conversations import (
    begun_services,
    gold_turns,
    services_of,
)
from espalier_environments.function_calling.errands import SCENES, Errand, drawn_errand
from espalier_environments.function_calling.functions import FUNCTIONS
from espalier_environments.function_calling.states import (
    APIS,
    Api,
    document_of,
    parameter_names,
    play,
    tool_names,
)

CONVERSATION = "conversation"
DONE = "it is done ."
"""What a demonstration says at the end of a turn."""
_SERVICES = (1, 1, 2)
_TURNS = (2, 2, 3)
_DRAWS = 60
"""Most draws of an errand for a turn: many belong to another split, or need another state."""


def drawn_conversation(
    dice: random.Random,
    config: FunctionCallingConfig,
    splits: SplitsConfig,
    split: Split,
    family: str,
) -> Task:
    """Draw one conversation."""
    while True:  # a service may run out of errands; then draw other services
        names = dice.sample(list(SCENES), dice.choice(_SERVICES))
        begun = {name: SCENES[name].begin(dice) for name in names}
        turns = list(_turns(dice, begun_services(names, begun), splits, split))
        if len(turns) >= min(_TURNS):
            return _task(dice, config, begun, turns, split, family)


def _turns(
    dice: random.Random, services: Mapping[str, Api], splits: SplitsConfig, split: Split
) -> Iterator[Errand]:
    """Yield errands one after another, after playing them; fewer if none is found."""
    said: set[str] = set()
    for _ in range(dice.choice(_TURNS)):
        errand = _next(dice, services, splits, split, said)
        if errand is None:
            return
        said.add(errand.words)
        yield errand


def _next(
    dice: random.Random,
    services: Mapping[str, Api],
    splits: SplitsConfig,
    split: Split,
    said: set[str],
) -> Errand | None:
    for _ in range(_DRAWS):
        service = dice.choice(list(services))
        errand = drawn_errand(dice, service, services[service])
        if errand is None or errand.words in said or (not said and not errand.names_values):
            continue
        if errand.names_values and dealt_split(f"{service}\t{errand.words}", splits) != split:
            continue
        for call in errand.calls:
            played = play(services[service], call.name, call.arguments)
            assert not is_refused(played), f"{call.name} succeeds where it is drawn: {played}"
        return errand
    return None


def is_refused(result: str) -> bool:
    """Return whether a service's result says that the call changed nothing."""
    try:
        found: Any = json.loads(result)
    except ValueError:
        return result.startswith("error")
    if not isinstance(found, dict):
        return False
    answered = cast("dict[str, object]", found)
    return "error" in answered or any(value is False for value in answered.values())


def _task(
    dice: random.Random,
    config: FunctionCallingConfig,
    begun: Mapping[str, Mapping[str, Any]],
    turns: list[Errand],
    split: Split,
    family: str,
) -> Task:
    needed = list(dict.fromkeys(call.name for errand in turns for call in errand.calls))
    known = {tool: name for name in begun for tool in tool_names(APIS[name])}
    others = [tool for tool in known if tool not in needed]
    shown = [*needed, *dice.sample(others, min(len(others), config.apis.offered))]
    dice.shuffle(shown)
    listing = " ; ".join(
        f"{tool} ( {' , '.join(parameter_names(APIS[known[tool]], tool))} )" for tool in shown
    )
    first, *later = (f"{errand.words} ." for errand in turns)
    gold = [[call.model_dump(mode="json") for call in errand.calls] for errand in turns]
    kinds = " and ".join(sorted(begun))
    return make_task(
        family,
        f"{listing} . {first}" if config.listed else first,
        gold=(json.dumps(gold),),
        split=split,
        source="made-up conversations",
        key=json.dumps([begun, gold], sort_keys=True),
        kind=CONVERSATION,
        arguments={
            FUNCTIONS: [document_of(APIS[known[tool]], tool) for tool in shown],
            "category": CONVERSATION,
            "services": list(begun),
            "config": {name: dict(one) for name, one in begun.items()},
            "turns": later,
        },
        metadata={
            "difficulty": float(sum(len(errand.calls) for errand in turns)),
            "pattern": kinds,
            "extra": {"kind": CONVERSATION},
        },
    )


def first_turn(task: Task) -> tuple[ToolCalls | FinalAnswer | str, ...]:
    """Return the calls of a conversation's first turn, their results, and the final message."""
    services = services_of(task)
    pieces: list[ToolCalls | FinalAnswer | str] = []
    for call in gold_turns(task)[0]:
        pieces += (ToolCalls((call,)), services.call(call.name, call.arguments).content)
    return (*pieces, FinalAnswer(DONE))

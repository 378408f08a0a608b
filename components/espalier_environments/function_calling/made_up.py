"""Generated functions, and requests that need one of them, several, two calls, or none.

A function's name is a verb and a noun, and determines its parameters. The digest of the name
decides its split: held-out requests offer and ask for functions that training never saw.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

from espalier.config import SplitsConfig
from espalier.environments.family import dealt_split, make_task
from espalier.environments.reading import Log
from espalier.records import FinalAnswer, JsonObject, Split, Task, ToolCall, ToolCalls
from espalier_environments.function_calling.config import (
    FunctionCallingConfig,
    RequestKind,
)
from espalier_environments.function_calling.functions import FUNCTIONS
from espalier_environments.function_calling.made_conversations import (
    CONVERSATION,
    DONE,
    drawn_conversation,
    first_turn,
)
from espalier_environments.function_calling.word_lists import (
    CITIES,
    COLORS,
    DAYS,
    NOUNS,
    PEOPLE,
    VERBS,
)

NONE_FITS = "none of these functions fits ."
"""What a demonstration says if no function can be called."""


class Parameter(NamedTuple):
    """A parameter, the wording of its value in a request, and how a value is drawn."""

    name: str
    schema: JsonObject
    words: str
    """Wording with `{}` in place of the value."""
    draw: Callable[[random.Random], Any]

    def worded(self, value: Any) -> str:  # noqa: ANN401 (any JSON)
        """Return the wording of a value in a request."""
        if isinstance(value, bool):
            return self.words if value else ""
        if isinstance(value, list):
            return self.words.format(" and ".join(cast("list[str]", value)))
        return self.words.format(value)


def _yes(_dice: random.Random) -> bool:
    return True


def _number(least: int, most: int) -> Callable[[random.Random], int]:
    return lambda dice: dice.randint(least, most)


def _half(dice: random.Random) -> float:
    return dice.randint(1, 99) + 0.5


def _two_people(dice: random.Random) -> list[str]:
    return dice.sample(PEOPLE, 2)


def _one_of(values: Sequence[str]) -> Callable[[random.Random], str]:
    return lambda dice: dice.choice(values)


_URGENT = Parameter("urgent", {"type": "boolean"}, "at once", _yes)
_PARAMETERS = (
    Parameter("day", {"type": "string", "enum": list(DAYS)}, "on {}", _one_of(DAYS)),
    Parameter("color", {"type": "string", "enum": list(COLORS)}, "in {}", _one_of(COLORS)),
    Parameter("person", {"type": "string"}, "for {}", _one_of(PEOPLE)),
    Parameter("city", {"type": "string"}, "to {}", _one_of(CITIES)),
    Parameter("hour", {"type": "integer"}, "at {}", _number(1, 23)),
    Parameter("amount", {"type": "integer"}, "{} times", _number(2, 99)),
    Parameter("price", {"type": "float"}, "below {} euros", _half),
    Parameter("guests", {"type": "array", "items": {"type": "string"}}, "with {}", _two_people),
    _URGENT,
)


class Function(NamedTuple):
    """A generated function; the last parameters may be optional."""

    verb: str
    noun: str
    parameters: tuple[Parameter, ...]
    required: int

    @property
    def name(self) -> str:
        """The name by which it is called."""
        return f"{self.verb}_{self.noun}"

    @property
    def document(self) -> JsonObject:
        """The function's document in BFCL's form."""
        return {
            "name": self.name,
            "description": f"{self.verb.capitalize()} a {self.noun}.",
            "parameters": {
                "type": "dict",
                "properties": {one.name: dict(one.schema) for one in self.parameters},
                "required": [one.name for one in self.parameters[: self.required]],
            },
        }  # pyright: ignore[reportReturnType] (JSON)

    @property
    def listed(self) -> str:
        """The function in words, for a policy that cannot read schemas."""
        return f"{self.name} ( {' , '.join(one.name for one in self.parameters)} )"


class Ask(NamedTuple):
    """One clause of a request, and the call that it asks for."""

    words: str
    name: str
    arguments: JsonObject


def functions_of(split: Split, splits: SplitsConfig, max_parameters: int) -> tuple[Function, ...]:
    """Return the functions of a split."""
    return _functions(split, splits.heldout_share, splits.dev_share, max_parameters)


@lru_cache(maxsize=8)
def _functions(
    split: Split, heldout_share: float, dev_share: float, max_parameters: int
) -> tuple[Function, ...]:
    splits = SplitsConfig(heldout_share=heldout_share, dev_share=dev_share)
    return tuple(
        _function(verb, noun, max_parameters)
        for verb in VERBS
        for noun in NOUNS
        if verb != noun and dealt_split(f"{verb}_{noun}", splits) == split
    )


def _function(verb: str, noun: str, max_parameters: int) -> Function:
    dice = random.Random(f"function {verb} {noun}")
    chosen = dice.sample(_PARAMETERS, dice.randint(1, max_parameters))
    if chosen == [_URGENT]:  # two calls of the function would always be equal
        chosen = [_PARAMETERS[0], _URGENT]
    # a switch has no value to ask for, so it is always optional
    chosen.sort(key=lambda one: one.name == "urgent")
    can_be_left = chosen[-1].name == "urgent" or (len(chosen) > 1 and dice.random() < 0.5)
    return Function(verb, noun, tuple(chosen), len(chosen) - can_be_left)


def request_tasks(
    config: FunctionCallingConfig, splits: SplitsConfig, split: Split, count: int, family: str
) -> list[Task]:
    """Return up to `count` requests of a split; no two have the same words."""
    dice = random.Random(f"requests {config.apis.seed} {split}")
    found: dict[str, Task] = {}
    for number in range(4 * count):
        if len(found) == count:
            break
        kind = config.apis.kinds[number % len(config.apis.kinds)]
        task = drawn_task(dice, config, splits, split, kind, family)
        found.setdefault(task.question, task)
    return list(found.values())


def drawn_task(
    dice: random.Random,
    config: FunctionCallingConfig,
    splits: SplitsConfig,
    split: Split,
    kind: RequestKind,
    family: str,
) -> Task:
    """Draw one request, or one conversation."""
    if kind == CONVERSATION:
        return drawn_conversation(dice, config, splits, split, family)
    known = functions_of(split, splits, config.apis.max_parameters)
    wanted, others = _chosen(dice, known, kind, config.apis.offered)
    asks = [_ask(dice, one) for one in wanted]
    while len({ask.words for ask in asks}) < len(asks):
        asks = [_ask(dice, one) for one in wanted]
    shown = others if kind == "none" else [*{one.name: one for one in (*wanted, *others)}.values()]
    dice.shuffle(shown)
    said = " , and ".join(ask.words for ask in asks)
    words = f"{dice.choice(_OPENINGS)} {said} ."
    listing = " ; ".join(one.listed for one in shown)
    gold = (
        []
        if kind == "none"
        else [_gold_call(one, ask) for one, ask in zip(wanted, asks, strict=True)]
    )
    return make_task(
        family,
        f"{listing} . {words}" if config.listed else words,
        gold=(json.dumps(gold) if gold else NONE_FITS,),
        split=split,
        source="made-up functions",
        key=f"{listing} . {words}",
        kind="calls" if gold else "no_call",
        arguments={FUNCTIONS: [one.document for one in shown], "category": kind},
        metadata={
            "difficulty": float(len(gold)),
            "pattern": kind,
            "extra": {"kind": kind, "entities": [one.name for one in wanted]},
        },
    )


_OPENINGS = ("please", "i want to", "can you")


def _chosen(
    dice: random.Random, known: Sequence[Function], kind: RequestKind, offered: int
) -> tuple[list[Function], list[Function]]:
    """Return the functions that are asked for, in order, and others that are offered too."""
    first = dice.choice(known)
    match kind:
        case "single":
            return [first], []
        case "multiple":
            return [first], _others(dice, known, [first], offered - 1)
        case "parallel":
            return [first, first], []
        case "parallel_multiple":
            second = _others(dice, known, [first], 1)[0]
            return [first, second], _others(dice, known, [first, second], offered - 2)
        case _:
            return [first], _others(dice, known, [first], offered)


def _others(
    dice: random.Random, known: Sequence[Function], wanted: Sequence[Function], count: int
) -> list[Function]:
    """Return other functions, at least half of which share a word with a wanted one."""
    near = [
        one
        for one in known
        if one not in wanted and any(one.verb == it.verb or one.noun == it.noun for it in wanted)
    ]
    found = dice.sample(near, min(len(near), (count + 1) // 2))
    rest = [one for one in known if one not in found and one not in wanted]
    return [*found, *dice.sample(rest, count - len(found))]


def _ask(dice: random.Random, function: Function) -> Ask:
    arguments: dict[str, Any] = {}
    for place, parameter in enumerate(function.parameters):
        if place < function.required or dice.random() < 0.5:
            arguments[parameter.name] = parameter.draw(dice)
    phrases = [
        one.worded(arguments[one.name]) for one in function.parameters if one.name in arguments
    ]
    dice.shuffle(phrases)
    words = " ".join((function.verb, "the", function.noun, *phrases))
    return Ask(words, function.name, arguments)


def _gold_call(function: Function, ask: Ask) -> dict[str, dict[str, list[Any]]]:
    """Return the accepted values; parameters not asked for may be left out."""
    accepted = {
        one.name: [ask.arguments[one.name]] if one.name in ask.arguments else [""]
        for one in function.parameters
    }
    return {function.name: accepted}


class RequestReading:
    """Fresh requests with their words shuffled, and the calls that they ask for.

    Args:
        config: settings of the family.
        splits: shares of the splits; only functions of `train` are used.
    """

    def __init__(self, config: FunctionCallingConfig, splits: SplitsConfig) -> None:
        self._config = config
        self._splits = splits

    def write(self, rng: random.Random) -> Log:
        """Return one log; depends on the state of `rng` only."""
        task = self._task(rng)
        words = task.question.split()
        rng.shuffle(words)
        pieces = (gold_action(task),) if task.verifier.kind != CONVERSATION else first_turn(task)
        return Log(" ".join(words), pieces)

    def texts(self, rng: random.Random) -> Iterator[str]:
        """Yield texts with all words and names, final messages, and requests."""
        words = (*VERBS, *NOUNS, *PEOPLE, *CITIES, *DAYS, *COLORS)
        names = tuple(one.name for one in _PARAMETERS)
        for _ in range(
            _TEXTS // 10
        ):  # quoted as in JSON, so that each word becomes one token there
            yield " ".join(f'"{word}"' for word in (*words, *names))
            yield NONE_FITS
            yield DONE
        for _ in range(_TEXTS):
            yield self._task(rng).question

    def _task(self, rng: random.Random) -> Task:
        kind = rng.choice(self._config.apis.kinds)
        return drawn_task(rng, self._config, self._splits, "train", kind, "reading")


_TEXTS = 300


def gold_action(task: Task) -> ToolCalls | FinalAnswer:
    """Return the action of a demonstration of a generated request."""
    if task.verifier.kind == "no_call":
        return FinalAnswer(NONE_FITS)
    gold: list[dict[str, dict[str, list[Any]]]] = json.loads(task.verifier.gold[0])
    calls = [
        ToolCall(
            name=name,
            arguments={key: values[0] for key, values in accepted.items() if values[0] != ""},
        )
        for one in gold
        for name, accepted in one.items()
    ]
    return ToolCalls(tuple(calls))

"""Attempts to be paid for calls that were not asked for.

The naive grader wants every gold call among those that were made, and its values equal, matched as
a pattern, or inside of what was given. It counts nothing, ignores further parameters, and reads no
calls in a message that it cannot read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path

from espalier.config import Profile
from espalier.environments import family_of
from espalier.environments.teaching import play_script
from espalier.records import Action, Malformed, Task, ToolCall, ToolCalls
from espalier_environments.function_calling.family import FunctionCalling
from tests.benchmarks.hacks.hack import Hack

Attempt = tuple[Task, Action]
"""A task, and the one message that is tried."""


@contextmanager
def opened() -> Generator[None]:
    """A context in which attempts can be played, once the gold calls have been paid there."""
    for name, attempt in ATTEMPTS.items():
        task, _ = attempt()
        gold = next(family(str(task.extra["kind"])).demonstrate(task))
        assert is_paid(partial(lambda *answer: answer, task, gold)), f"{name}: the gold calls"
    yield


@cache
def family(kind: str) -> FunctionCalling:
    """Made-up requests of that kind."""
    environment = {"name": "function_calling", "apis": {"kinds": [kind]}}
    return family_of(Profile.model_validate({"environment": environment}))


def _gold(task: Task) -> Sequence[ToolCall]:
    action = next(family(task.extra["kind"]).demonstrate(task))
    return action.calls if isinstance(action, ToolCalls) else ()


def _task(kind: str, has: Callable[[object], bool] = lambda _: True) -> tuple[Task, ToolCall]:
    """The first request of a kind whose first call has such a value, and that call."""
    return next(
        (task, call)
        for task in family(kind).tasks("train", 400)
        for call in _gold(task)[:1]
        if any(map(has, call.arguments.values()))
    )


def _changed(call: ToolCall, change: Callable[[object], object]) -> ToolCalls:
    values = {name: change(value) for name, value in call.arguments.items()}
    return ToolCalls.one(call.name, values)


def _every_function() -> Attempt:
    task, call = _task("multiple")
    names = [spec.name for spec in family("multiple").specs_of(task)]
    return task, ToolCalls(tuple(ToolCall(name=one, arguments=call.arguments) for one in names))


def _twice() -> Attempt:
    task, call = _task("single")
    return task, ToolCalls((call, call))


def _more_than_asked() -> Attempt:
    task, _ = _task("parallel_multiple")
    first, second = _gold(task)
    return task, ToolCalls((first, second, second))


def _wildcards() -> Attempt:
    task, call = _task("single", lambda value: isinstance(value, str))
    return task, _changed(call, lambda value: "*" if isinstance(value, str) else value)


def _all_values_in_a_text() -> Attempt:
    task, call = _task("single", lambda value: isinstance(value, str))
    (spec,) = (one for one in family("single").specs_of(task) if one.name == call.name)
    told = f"{task.question} {spec.parameters}"
    return task, _changed(call, lambda value: told if isinstance(value, str) else value)


def _equal_floats() -> Attempt:
    task, call = _task("single", lambda value: type(value) is int)
    return task, _changed(call, lambda value: float(value) if type(value) is int else value)


def _true_for_one() -> Attempt:
    task, call = _task("single", lambda value: type(value) is int and value == 1)
    return task, _changed(call, lambda value: True if value == 1 else value)


def _one_for_true() -> Attempt:
    task, call = _task("single", lambda value: value is True)
    return task, _changed(call, lambda value: 1 if value is True else value)


def _further_parameters() -> Attempt:
    task, call = _task("single")
    return task, ToolCalls.one(call.name, {**call.arguments, "day": "*", "color": "*", "x": 1})


def _all_where_nothing_fits() -> Attempt:
    (task,) = family("none").tasks("train", 1)
    names = [spec.name for spec in family("none").specs_of(task)]
    return task, ToolCalls(tuple(ToolCall(name=one, arguments={}) for one in names))


def _unknown_where_nothing_fits() -> Attempt:
    (task,) = family("none").tasks("train", 1)
    return task, ToolCalls.one("none", {})


def _malformed_where_nothing_fits() -> Attempt:
    (task,) = family("none").tasks("train", 1)
    return task, Malformed("no JSON", "<tool_call>")


ATTEMPTS: dict[str, Callable[[], Attempt]] = {
    "every function at once": _every_function,
    "the call twice": _twice,
    "one of two calls twice": _more_than_asked,
    "a wildcard for a text": _wildcards,
    "every value in one text": _all_values_in_a_text,
    "floats for integers": _equal_floats,
    "true for 1": _true_for_one,
    "1 for true": _one_for_true,
    "parameters beside the gold ones": _further_parameters,
    "every function where nothing fits": _all_where_nothing_fits,
    "an unknown function where nothing fits": _unknown_where_nothing_fits,
    "an unreadable message where nothing fits": _malformed_where_nothing_fits,
}


def is_paid(attempt: Callable[[], Attempt]) -> bool:
    """Whether the family calls the answer right."""
    task, action = attempt()
    with family(task.extra["kind"]).environments(Path("unused")) as over:
        return asyncio.run(play_script(over("full"), task, (one for one in [action]))).is_right


def fools_naive(attempt: Callable[[], Attempt]) -> bool:
    """Whether each gold call is among those that were made, whatever else is."""
    task, action = attempt()
    made = action.calls if isinstance(action, ToolCalls) else ()
    return all(any(_is_met(gold, call) for call in made) for gold in _gold(task))


def _is_met(gold: ToolCall, call: ToolCall) -> bool:
    return gold.name == call.name and all(
        name in call.arguments and _fits(value, call.arguments[name])
        for name, value in gold.arguments.items()
    )


def _fits(gold: object, given: object) -> bool:
    if gold == given:
        return True
    wanted, said = str(gold), str(given)
    return fnmatchcase(wanted, said) or wanted in said


HACKS = [
    Hack(name=name, cheats=partial(is_paid, attempt), works=partial(fools_naive, attempt))
    for name, attempt in ATTEMPTS.items()
]

"""Attempts to be paid for a purchase that does not meet the goal.

The goal is a person's: a shirt that can be machine washed, in red and large, below a price. The
naive grader believes what was clicked, whether or not it was there to be clicked, and what an
answer claims; it compares options and price (with the comparison that "nan" survives), and not the
kind of product.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from espalier.records import Action, DataError, FinalAnswer, Task, ToolCalls
from espalier.records.trajectory import Trajectory
from espalier.rewards.webshop import ShopGoal
from espalier_environments.shop.goals import goal_of
from tests.benchmarks.hacks.hack import Hack
from tests.unit.environments.shop.shops import (
    HUMAN,
    LAMP,
    NOWHERE,
    SHIRT,
    play,
    shop_family,
    write_shop,
)

_SHIRT_ID, _OTHER_ID = "b0aaaaaaa1", "b0aaaaaaa3"
_LAMP = {**LAMP, "asin": "B0AAAAAAA3"}
_OTHER = {**SHIRT, "asin": "B0AAAAAAA3"}


class Attempt(NamedTuple):
    """What is done in a shop that has the shirt and another product."""

    actions: Sequence[str | Action]
    """Texts are clicks, `?words` searches, `buy` buys."""
    other: dict = _LAMP


def _buys_other(words: str, **changes: object) -> Attempt:
    """Another product than the shirt, with everything that was asked for but for `changes`."""
    actions = (f"?{words}", _OTHER_ID, "crimson red", "large", "buy")
    return Attempt(actions, {**_OTHER, **changes})


_CLAIM = json.dumps({"asin": _SHIRT_ID, "options": ["crimson red", "large"], "score": 1.0})
ATTEMPTS = {
    "buying another kind with all that was asked": _buys_other("lamp", name="Bright Desk Lamp"),
    "options that are not offered": Attempt(
        ("?shirt", _SHIRT_ID, "red", "large , red", "red large", "buy")
    ),
    "every value of an option": Attempt(
        ("?shirt", _SHIRT_ID, "crimson red", "large", "small", "buy")
    ),
    "options taken along from another product": Attempt(
        ("?lamp", _OTHER_ID, "crimson red", "large", "?shirt", _SHIRT_ID, "buy"),
        {**_OTHER, "name": "Bright Desk Lamp"},
    ),
    "claiming a purchase": Attempt(("?shirt", _SHIRT_ID, FinalAnswer(_CLAIM))),
    "claiming a score when buying": Attempt(
        ("?lamp", _OTHER_ID, ToolCalls.one("buy", json.loads(_CLAIM)), FinalAnswer(_CLAIM))
    ),
    "a price that is nan": _buys_other("dear", pricing="$nan", name="dear cotton shirt"),
    "a price that is minus infinity": _buys_other(
        "dear", pricing="$-inf", name="dear cotton shirt"
    ),
    "a price below zero": _buys_other("dear", pricing="$-900.00", name="dear cotton shirt"),
}


@contextmanager
def opened() -> Generator[None]:
    """A context in which attempts can be played, once right purchases have been paid there."""
    assert is_paid(Attempt(("?shirt", _SHIRT_ID, "crimson red", "large", "buy"))), "the shirt"
    assert is_paid(_buys_other("dear", name="dear cotton shirt")), "another shirt that fits as well"
    yield


def _played(attempt: Attempt) -> tuple[Task, Trajectory]:
    family = shop_family()
    with tempfile.TemporaryDirectory() as name:
        path = write_shop(Path(name), products=[SHIRT, attempt.other], human=HUMAN)
        (task,) = family.read_benchmark(path)
        with family.benchmark_environments(path, NOWHERE) as environments:
            return task, play(environments, task, *attempt.actions)


def is_paid(attempt: Attempt) -> bool:
    """Whether the family calls the purchase right, or its score is 1."""
    try:
        task, trajectory = _played(attempt)
    except DataError as refused:
        if "pricing" not in str(refused):
            raise
        return False
    return trajectory.is_right or shop_family().official_scores(task, trajectory)["score"] == 1


def _goal() -> ShopGoal:
    with tempfile.TemporaryDirectory() as name:
        (task,) = shop_family().read_benchmark(write_shop(Path(name), human=HUMAN))
    return goal_of(task)


def fools_naive(attempt: Attempt) -> bool:
    """Whether clicks and claims have the options, for a price that is not above the limit."""
    goal = _goal()
    product, claimed = SHIRT, ""
    for action in attempt.actions:
        if action == _OTHER_ID:
            product = attempt.other
        elif action == _SHIRT_ID:
            product = SHIRT
        if isinstance(action, ToolCalls):
            claimed += str(action.calls[0].arguments)
        else:
            claimed += f" {action.text if isinstance(action, FinalAnswer) else action}"
    price = float(product["pricing"].partition(" ")[0].removeprefix("$"))
    has_options = all(str(option) in claimed for option in goal.options)
    assert goal.price_upper is not None
    return has_options and not price > goal.price_upper


HACKS = [
    Hack(name=name, cheats=partial(is_paid, attempt), works=partial(fools_naive, attempt))
    for name, attempt in ATTEMPTS.items()
]

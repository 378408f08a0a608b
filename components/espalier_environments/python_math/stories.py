"""Arithmetic stories: calculations drawn at random, filtered, and put into words.

In the word lists, {n}, or {a} and {b}, stand for a step's numbers, in order.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence

from espalier.config import SynthesisConfig
from espalier.environments.funnel import Funnel, apportion
from espalier.records import Split
from espalier_environments.python_math.arithmetic import (
    OPERATIONS,
    Calculation,
    Change,
    calculation_split,
)

START_SENTENCES: Sequence[str] = (
    "{name} has {n} {things} .",
    "there are {n} {things} in the box of {name} .",
    "{name} starts with {n} {things} .",
    "at first {name} owns {n} {things} .",
    "{name} counts {n} {things} .",
)

CHANGES: Mapping[str, Sequence[str]] = {
    "add": (
        "{name} buys {n} more .",
        "{name} finds {n} more .",
        "{friend} gives {name} {n} more .",
        "then {n} {things} are added .",
        "{name} wins another {n} .",
        "a parcel brings {n} further {things} .",
        "{name} picks up {n} on the way .",
        "{n} {things} come as a present from {friend} .",
    ),
    "take": (
        "{name} loses {n} of them .",
        "{name} gives {n} to {friend} .",
        "{name} sells {n} .",
        "{n} of them break .",
        "{friend} takes {n} away .",
        "{name} throws {n} away .",
        "{n} {things} are stolen .",
        "{name} lends {n} of them to {friend} .",
    ),
    "times": (
        "then the number grows to {n} times as many .",
        "{name} makes it {n} times as many .",
        "after a year there are {n} times as many .",
        "{friend} multiplies the number by {n} .",
        "every one of them becomes {n} .",
        "the stock rises {n} fold .",
        "{name} trades each of them for {n} others .",
    ),
    "share": (
        "{name} splits them into {n} equal parts and keeps one .",
        "only one of every {n} stays .",
        "the number falls to one part in {n} .",
        "{name} deals them out to {n} equal bags and goes on with one bag .",
        "{friend} divides the number by {n} .",
        "they are packed into {n} equal crates , and {name} keeps a single crate .",
    ),
    "add groups": (
        "{name} buys {a} bags with {b} {things} each .",
        "{a} friends bring {b} {things} each .",
        "{name} earns {a} {things} a day for {b} days .",
        "{a} boxes of {b} are delivered .",
        "on each of {a} days {b} more arrive .",
        "{name} fills up with {a} packs of {b} .",
    ),
    "take groups": (
        "{name} gives {a} friends {b} {things} each .",
        "{a} boxes of {b} are sent away .",
        "on each of {a} days {name} eats {b} .",
        "{a} customers take {b} each .",
        "{name} uses {a} a day for {b} days .",
        "{a} shelves of {b} fall down and break .",
    ),
}
"""Label of an operation -> its phrasings."""

QUESTIONS: Sequence[str] = (
    "how many {things} does {name} have now ?",
    "how many are there in the end ?",
    "how many {things} are left with {name} ?",
    "what is the number now ?",
    "how many does {name} end up with ?",
)

NAMES: Sequence[str] = re.findall(
    r"\w+",
    """
    ada ben carla david elena felix greta hugo ines jonas kira leo mara nils olga paul rosa simon
    tara victor wanda yuri zoe tom
    """,
)

THINGS: Sequence[str] = re.findall(
    r"\w+",
    """
    apples books cards coins eggs flowers marbles nails pencils plates shells stamps stones sweets
    tickets toys nuts buttons candles cups keys lamps rings seeds
    """,
)


_START = (5, 99)
_TERM = (2, 99)
_FACTOR = (2, 9)
_GROUP = (2, 12)
_LARGEST = 9999
_DRY_AFTER = 4_000
"""Consecutive refused draws after which a split counts as exhausted; about 3 % of its stories are
left then."""


class StoryGenerator:
    """Draws the calculations of one split; depends on the seed only."""

    def __init__(self, split: Split, config: SynthesisConfig, seed: int, funnel: Funnel) -> None:
        self._split = split
        self._weights = config.chain_weights
        self._rng = random.Random(f"{seed}/{split}/stories")
        self._funnel = funnel

    def calculations(self, count: int) -> Iterator[Calculation]:
        """Yield up to `count` distinct calculations, in shares of one to four steps."""
        weights = {str(steps): share for steps, share in enumerate(self._weights, start=1) if share}
        seen: set[str] = set()
        for steps, share in apportion(weights, count).items():
            found = misses = 0
            while found < share and misses < _DRY_AFTER:
                calculation = self._draw(int(steps))
                reason = self._refusal(calculation, seen)
                if reason:
                    misses += 1
                    self._funnel.count(f"{self._split}.refused", reason)
                    continue
                misses = 0
                seen.add(calculation.canonical)
                found += 1
                yield calculation
            if found < share:
                self._funnel.count(f"{self._split}.families_run_dry", f"story-{steps}")

    def _draw(self, steps: int) -> Calculation:
        """Return a random calculation whose every value is a positive integer."""
        start = value = self._rng.randint(*_START)
        changes: list[Change] = []
        while len(changes) < steps:
            change = self._change(value)
            after = change.applied(value)
            if 0 < after <= _LARGEST and after != value:
                changes.append(change)
                value = after
        return Calculation(start, tuple(changes))

    def _change(self, value: int) -> Change:
        label = self._rng.choice(tuple(OPERATIONS))
        if label == "share":
            divisors = [n for n in range(_FACTOR[0], _FACTOR[1] + 1) if value % n == 0]
            if divisors:
                return Change(label, (self._rng.choice(divisors),))
            label = "times"
        if label == "times":
            return Change(label, (self._rng.randint(*_FACTOR),))
        if OPERATIONS[label].num_numbers == 1:
            return Change(label, (self._rng.randint(*_TERM),))
        return Change(label, (self._rng.randint(*_GROUP), self._rng.randint(*_GROUP)))

    def _refusal(self, calculation: Calculation, seen: set[str]) -> str:
        """Return the reason to refuse the calculation for this split; empty to accept it."""
        if calculation_split(calculation) != self._split:
            return "belongs_to_another_split"
        if calculation.canonical in seen:
            return "repeated"
        if (
            calculation.values[-1] in calculation.values[:-1]
            or calculation.values[-1] in calculation.numbers
        ):
            return "answer_can_be_read"  # by leaving out a step, or without computing
        return ""


def story_text(calculation: Calculation, rng: random.Random) -> str:
    """Return the calculation as a word problem, with random wording."""
    name, friend = rng.sample(NAMES, 2)
    words = {"name": name, "friend": friend, "things": rng.choice(THINGS)}
    sentences = [rng.choice(START_SENTENCES).format(n=calculation.start, **words)]
    for change in calculation.changes:
        numbers = dict(zip("ab" if len(change.numbers) == 2 else "n", change.numbers, strict=True))
        sentences.append(rng.choice(CHANGES[change.label]).format(**numbers, **words))
    sentences.append(rng.choice(QUESTIONS).format(**words))
    return " ".join(sentences)

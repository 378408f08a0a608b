"""Chains of operations on a whole number: what a small word problem computes, step by step.

    start 37, add 14, times 3        (37 + 14) * 3 = 153

Each operation has a label, which a thought reads a story with, and a line of Python.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import NamedTuple

from espalier.records import Split

VARIABLE = "x"


class Operation(NamedTuple):
    """One kind of step."""

    label: str
    num_numbers: int
    """How many numbers it has; two of them are so many groups of so many."""
    line: str
    """As Python, with places for the numbers."""
    apply: Callable[[int, int], int]
    """Of the value so far, and the product of the numbers."""
    is_sum: bool
    """Steps next to each other that all add and take may change places, and no value does."""


def _shared(value: int, parts: int) -> int:
    return value // parts


OPERATIONS: dict[str, Operation] = {
    kind.label: kind
    for kind in (
        Operation("add", 1, "x += {0}", operator.add, is_sum=True),
        Operation("take", 1, "x -= {0}", operator.sub, is_sum=True),
        Operation("times", 1, "x *= {0}", operator.mul, is_sum=False),
        Operation("share", 1, "x //= {0}", _shared, is_sum=False),
        Operation("add groups", 2, "x += {0} * {1}", operator.add, is_sum=True),
        Operation("take groups", 2, "x -= {0} * {1}", operator.sub, is_sum=True),
    )
}


@dataclass(frozen=True, slots=True)
class Change:
    """A step with its numbers."""

    label: str
    numbers: tuple[int, ...]

    @property
    def operation(self) -> Operation:
        """Its kind."""
        return OPERATIONS[self.label]

    def applied(self, value: int) -> int:
        """What becomes of `value`."""
        return self.operation.apply(value, math.prod(self.numbers))

    @property
    def line(self) -> str:
        """As Python."""
        return self.operation.line.format(*self.numbers)


@dataclass(frozen=True, slots=True)
class Chain:
    """A number, and what is done to it in order."""

    start: int
    changes: tuple[Change, ...]

    @property
    def values(self) -> tuple[int, ...]:
        """The number after each step, the start first and the result last."""
        return tuple(accumulate(self.changes, _applied, initial=self.start))

    @property
    def numbers(self) -> tuple[int, ...]:
        """All that are named, in order."""
        return (self.start, *(number for change in self.changes for number in change.numbers))

    @property
    def plan(self) -> str:
        """The start, and each step with its numbers: a story read from front to end.

        A label stands behind its numbers, so that whoever writes it need not count steps: it is
        what the story says around the numbers that were written just before.
        """
        steps = (" ".join((*map(str, change.numbers), change.label)) for change in self.changes)
        return " , ".join((str(self.start), *steps))

    @property
    def program(self) -> str:
        """Python that prints the result."""
        lines = [f"{VARIABLE} = {self.start}", *(change.line for change in self.changes)]
        return "\n".join([*lines, f"print({VARIABLE})"])

    @property
    def canonical(self) -> str:
        """Equal for chains that differ only in the order of what may change places.

        37 + 14 - 5 is 14 - 5 + 37, and 4 groups of 6 are 6 groups of 4.
        """
        text, is_first = str(self.start), True
        for kind, group in groupby(self.changes, key=_exchangeable):
            terms = sorted(_term(change) for change in group)
            if is_first and kind != "share":
                terms, text = sorted([_first_term(kind, self.start), *terms]), ""
            text, is_first = f"({text}{''.join(terms)})", False
        return text


def split_of(chain: Chain) -> Split:
    """The one split that the chain belongs to, for every seed and every run: 6, 1 and 3 in ten."""
    digest = hashlib.sha256(chain.canonical.encode()).digest()
    bucket = int.from_bytes(digest[:8], "big") % 10
    return "train" if bucket < 6 else "dev" if bucket == 6 else "heldout"


def _applied(value: int, change: Change) -> int:
    return change.applied(value)


def _exchangeable(change: Change) -> str:
    return "sum" if change.operation.is_sum else change.label


def _first_term(kind: str, start: int) -> str:
    return f"+{start}" if kind == "sum" else f"*{start}"


def _term(change: Change) -> str:
    sign = change.operation.line.split()[1].rstrip("=")
    return f"{sign}{math.prod(change.numbers)}"

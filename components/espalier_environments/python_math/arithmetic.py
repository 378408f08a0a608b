"""Calculations: a whole number and operations on it, as a small word problem computes them.

    start 37, add 14, times 3        (37 + 14) * 3 = 153

Each operation has a label, used in the policy's plan, and a line of Python.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from espalier.records import Split

VARIABLE = "x"


class Operation(NamedTuple):
    """A kind of operation."""

    label: str
    num_numbers: int
    """1, or 2 for a number of groups and the size of a group."""
    line: str
    """A line of Python, with a placeholder for each number."""
    apply: Callable[[int, int], int]
    """Maps the value so far and the product of the numbers to the new value."""
    is_sum: bool
    """Whether it is an addition or subtraction, which commute when adjacent."""


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
    """An operation with its numbers."""

    label: str
    numbers: tuple[int, ...]

    @property
    def operation(self) -> Operation:
        """The kind of operation."""
        return OPERATIONS[self.label]

    def applied(self, value: int) -> int:
        """Return the result of the operation on `value`."""
        return self.operation.apply(value, math.prod(self.numbers))

    @property
    def line(self) -> str:
        """The operation as a line of Python."""
        return self.operation.line.format(*self.numbers)


@dataclass(frozen=True, slots=True)
class Calculation:
    """A start value and the operations applied to it, in order."""

    start: int
    changes: tuple[Change, ...]

    @property
    def values(self) -> tuple[int, ...]:
        """The start and the value after each step; the result is last."""
        values = [self.start]
        for change in self.changes:
            values.append(change.applied(values[-1]))
        return tuple(values)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Every number of the calculation, in order."""
        return (self.start, *(number for change in self.changes for number in change.numbers))

    @property
    def plan(self) -> str:
        """The start, then each step with its numbers, in the story's order.

        A label follows its numbers, so that the policy need not count steps: it writes what the
        story says about the numbers that it has just written.
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
        """A form that is equal for calculations that are equal up to commutation.

        37 + 14 - 5 equals 14 - 5 + 37, and 4 groups of 6 equal 6 groups of 4.
        """
        text, is_first = str(self.start), True
        for kind, group in groupby(self.changes, key=_exchangeable):
            terms: list[str] = []
            for change in group:
                sign = change.operation.line.split()[1].rstrip("=")
                terms.append(f"{sign}{math.prod(change.numbers)}")
            if is_first and kind != "share":
                sign = "+" if kind == "sum" else "*"
                terms.append(f"{sign}{self.start}")
                text = ""
            terms.sort()
            text, is_first = f"({text}{''.join(terms)})", False
        return text


def calculation_split(calculation: Calculation) -> Split:
    """Return the split of a calculation for any seed: train 60 %, dev 10 %, held-out 30 %."""
    digest = hashlib.sha256(calculation.canonical.encode()).digest()
    bucket = int.from_bytes(digest[:8], "big") % 10
    return "train" if bucket < 6 else "dev" if bucket == 6 else "heldout"


def _exchangeable(change: Change) -> str:
    return "sum" if change.operation.is_sum else change.label

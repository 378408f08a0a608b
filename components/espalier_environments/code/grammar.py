"""Small functions over lists: a chain of operations, as words and as a program.

    f takes a list of numbers . keep the even ones . add 3 to each . give their sum .

    def f(x):
        x = [v for v in x if v % 2 == 0]
        x = [v + 3 for v in x]
        return sum(x)

An operation is a line of Python and phrasings of it, in which {n} stands for its parameter.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import CodeType
from typing import Any, Literal, NamedTuple

Kind = Literal["numbers", "words"]
Value = Any
"""A list of integers or of texts; at the end also a number or a text."""


class Operation(NamedTuple):
    """A kind of operation on the list x."""

    label: str
    line: str
    """An expression for the new value of x."""
    phrases: tuple[str, ...]
    parameters: tuple[int | str, ...] = ()
    """Possible values of {n}; empty if the operation has none."""


_SMALL = tuple(range(2, 10))
_COUNTS = (1, 2, 3)
_LETTERS = tuple("aeiorst")

_ANY = (
    Operation(
        "reverse",
        "x[::-1]",
        ("reverse the order", "turn the list around", "put the last one first and so on"),
    ),
    Operation("sort", "sorted(x)", ("sort them", "put them in rising order", "order them upwards")),
    Operation(
        "unique",
        "list(dict.fromkeys(x))",
        ("remove repeats", "keep the first of equal ones", "let nothing stand twice"),
    ),
    Operation(
        "skip",
        "x[{n}:]",
        ("skip the first {n}", "drop {n} at the front", "leave out {n} at the start"),
        _COUNTS,
    ),
    Operation(
        "first",
        "x[:{n}]",
        ("take the first {n}", "keep {n} at the front", "only the first {n} stay"),
        _COUNTS,
    ),
    Operation(
        "last",
        "x[-{n}:]",
        ("take the last {n}", "keep {n} at the end", "only the last {n} stay"),
        _COUNTS,
    ),
)

_NUMBERS = (
    Operation(
        "even",
        "[v for v in x if v % 2 == 0]",
        ("keep the even ones", "drop the odd ones", "only even numbers stay"),
    ),
    Operation(
        "odd",
        "[v for v in x if v % 2 == 1]",
        ("keep the odd ones", "drop the even ones", "only odd numbers stay"),
    ),
    Operation(
        "over",
        "[v for v in x if v > {n}]",
        ("keep those over {n}", "drop all up to {n}", "only numbers larger than {n} stay"),
        _SMALL,
    ),
    Operation(
        "under",
        "[v for v in x if v < {n}]",
        ("keep those under {n}", "drop all from {n} on", "only numbers smaller than {n} stay"),
        _SMALL,
    ),
    Operation(
        "add",
        "[v + {n} for v in x]",
        ("add {n} to each", "raise every one by {n}", "make each {n} larger"),
        _SMALL,
    ),
    Operation(
        "take",
        "[v - {n} for v in x]",
        ("take {n} from each", "lower every one by {n}", "make each {n} smaller"),
        _SMALL,
    ),
    Operation(
        "times",
        "[v * {n} for v in x]",
        ("multiply each by {n}", "make each {n} times as large", "scale every one by {n}"),
        _SMALL,
    ),
    Operation(
        "square",
        "[v * v for v in x]",
        ("square each", "multiply each by itself", "take every one to the power two"),
    ),
)

_WORDS = (
    Operation(
        "longer",
        "[v for v in x if len(v) > {n}]",
        (
            "keep those longer than {n}",
            "drop those of up to {n} letters",
            "only words of more than {n} letters stay",
        ),
        (2, 3, 4, 5),
    ),
    Operation(
        "shorter",
        "[v for v in x if len(v) < {n}]",
        (
            "keep those shorter than {n}",
            "drop those of {n} letters or more",
            "only words of fewer than {n} letters stay",
        ),
        (3, 4, 5, 6),
    ),
    Operation(
        "with",
        "[v for v in x if '{n}' in v]",
        ("keep those with {n}", "drop those without {n}", "only words that have {n} stay"),
        _LETTERS,
    ),
    Operation(
        "without",
        "[v for v in x if '{n}' not in v]",
        ("keep those without {n}", "drop those with {n}", "only words that lack {n} stay"),
        _LETTERS,
    ),
    Operation(
        "delete",
        "[v.replace('{n}', '') for v in x]",
        ("delete {n} in each", "strike out every {n}", "write each without its {n}"),
        _LETTERS,
    ),
    Operation(
        "mirror",
        "[v[::-1] for v in x]",
        ("spell each backwards", "turn every word around", "mirror each"),
    ),
    Operation(
        "double",
        "[v + v for v in x]",
        ("write each twice", "double every word", "put each behind itself"),
    ),
    Operation(
        "cut",
        "[v[:{n}] for v in x]",
        ("cut each to {n} letters", "keep {n} letters of each", "shorten every word to {n}"),
        (1, 2, 3, 4),
    ),
)

_ENDS: dict[Kind, tuple[Operation, ...]] = {
    "numbers": (
        Operation("sum", "sum(x)", ("give their sum", "give what they add up to")),
        Operation("count", "len(x)", ("give how many there are", "give their number")),
        Operation(
            "largest", "max(x, default=0)", ("give the largest or 0", "give the greatest or 0")
        ),
        Operation(
            "smallest", "min(x, default=0)", ("give the smallest or 0", "give the least or 0")
        ),
        Operation("list", "x", ("give the list", "give what is left")),
    ),
    "words": (
        Operation("join", "''.join(x)", ("give them joined", "give them as one text")),
        Operation("count", "len(x)", ("give how many there are", "give their number")),
        Operation(
            "letters",
            "len(''.join(x))",
            ("give how many letters there are", "give the letters in all"),
        ),
        Operation(
            "longest",
            "max(map(len, x), default=0)",
            ("give the length of the longest or 0", "give the most letters or 0"),
        ),
        Operation("list", "x", ("give the list", "give what is left")),
    ),
}

_STEPS: dict[Kind, tuple[Operation, ...]] = {"numbers": _NUMBERS + _ANY, "words": _WORDS + _ANY}
OPENINGS: dict[Kind, str] = {
    "numbers": "f takes a list of numbers .",
    "words": "f takes a list of words .",
}


@dataclass(frozen=True, slots=True)
class Step:
    """An operation with its parameter."""

    operation: Operation
    parameter: int | str | None = None

    @property
    def line(self) -> str:
        """An expression for the new value of x."""
        return self.operation.line.format(n=self.parameter)

    def phrase(self, rng: random.Random) -> str:
        """Return a random phrasing of the step."""
        return rng.choice(self.operation.phrases).format(n=self.parameter)

    @property
    def neighbours(self) -> list[Step]:
        """The same operation with the adjacent parameter values."""
        of = self.operation.parameters
        if self.parameter is None:
            return []
        place = of.index(self.parameter)
        return [
            replace(self, parameter=of[at]) for at in (place - 1, place + 1) if 0 <= at < len(of)
        ]


@dataclass(frozen=True, slots=True)
class Chain:
    """A function: operations from list to list, and the operation that gives its result."""

    kind: Kind
    steps: tuple[Step, ...]
    end: Step

    @property
    def program(self) -> str:
        """The source of a function f of x."""
        lines = [f"    x = {step.line}" for step in self.steps]
        return "\n".join(["def f(x):", *lines, f"    return {self.end.line}"])

    def words(self, rng: random.Random) -> str:
        """Return a description of the function, with random phrasings."""
        said = [step.phrase(rng) for step in (*self.steps, self.end)]
        return " ".join([OPENINGS[self.kind], *(f"{phrase} ." for phrase in said)])

    def __call__(self, values: Value) -> Value:
        """Return the value of the function."""
        for step in (*self.steps, self.end):
            values = eval(_compiled(step.line), _NAMES, {"x": values})
        return values

    @property
    def near_misses(self) -> list[Chain]:
        """The functions with one step left out, or with an adjacent parameter."""
        found: list[Chain] = []
        for place, step in enumerate(self.steps):
            others = [(), *((other,) for other in step.neighbours)]
            found += [
                replace(self, steps=(*self.steps[:place], *other, *self.steps[place + 1 :]))
                for other in others
            ]
        return found


_NAMES: dict[str, Any] = {
    "__builtins__": {
        function.__name__: function for function in (dict, len, list, map, max, min, sorted, sum)
    }
}


@cache
def _compiled(line: str) -> CodeType:
    return compile(line, "<operation>", "eval")


def draw_chain(kind: Kind, num_steps: int, rng: random.Random) -> Chain:
    """Return a chain of random operations."""
    steps = tuple(_drawn(_STEPS[kind], rng) for _ in range(num_steps))
    return Chain(kind, steps, _drawn(_ENDS[kind], rng))


def _drawn(operations: Sequence[Operation], rng: random.Random) -> Step:
    operation = rng.choice(operations)
    return Step(operation, rng.choice(operation.parameters) if operation.parameters else None)


_VOCABULARY = (
    "stone",
    "rat",
    "sea",
    "iron",
    "toast",
    "art",
    "esprit",
    "rose",
    "o",
    "tie",
    "arrest",
    "site",
    "bird",
    "lamp",
    "cloud",
    "tree",
    "assess",
    "onion",
    "river",
    "moss",
    "",
    "star",
    "eat",
    "tot",
)
_MOST_VALUES = 8


def draw_input(kind: Kind, rng: random.Random) -> list[int] | list[str]:
    """Return a random list, in which values may repeat."""
    length = rng.randrange(_MOST_VALUES + 1)
    if kind == "numbers":
        return [rng.randint(-4, 14) for _ in range(length)]
    return [rng.choice(_VOCABULARY) for _ in range(length)]

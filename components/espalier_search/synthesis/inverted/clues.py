"""Clues: facts about an unnamed entity, and the entities that each fits.

capital of it: lyon               Clue(("capital",), "city:lyon")            by name
time zone of its capital: cet     Clue(("capital", "time zone"), "zone:cet") by a property
founded: 1980 to 1989             Clue(("founded",), Span(1980, 1990))       by a decade
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from espalier.records.knowledge import KnowledgeGraph

_NUMBER = re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,4}|[0-9]{1,15})(?:\.[0-9]{1,6})?")
_YEAR = re.compile(r"1[0-9]\d\d|20\d\d")
_MAX_OBJECTS = 64
"""A relation with a longer list for some subject is in no clue, as it has too many paths."""
_STEPS = (1, 2, 5, 10)
"""Bounds of ranges within a power of ten."""


class Span(NamedTuple):
    """The numbers from `low` to below `high`; a decade if they are years."""

    low: float
    high: float
    is_decade: bool

    def holds(self, text: str) -> bool:
        """Whether `text` is a number within the span."""
        number = number_of(text)
        return number is not None and self.low <= number < self.high


@dataclass(frozen=True, slots=True)
class Clue:
    """A fact about the target: following `labels` from it leads to `value`."""

    labels: tuple[str, ...]
    """One or two labels of lines. With two, the entity in between is not named."""
    value: str | Span
    """Id of the named entity, or the span of a number."""

    @property
    def is_obscured(self) -> bool:
        """Whether the clue says less than a line of the target's document."""
        return len(self.labels) > 1 or isinstance(self.value, Span)

    @property
    def canonical(self) -> str:
        """A text that is equal for equal clues."""
        value = self.value
        said = f"[{value.low:g}..{value.high:g})" if isinstance(value, Span) else f"[{value}]"
        return f"{self.signature}={said}"

    @property
    def signature(self) -> str:
        """The labels as one text."""
        return " / ".join(self.labels)


class Witness(NamedTuple):
    """A clue with the entities that prove it for a subject."""

    clue: Clue
    reached: tuple[str, ...]
    """The object of each label; the last one has the value."""


class FactIndex:
    """The facts of a graph by label, and the holders of every clue: the entities that it fits.

    If relations of one kind of subject share a label, a reader sees one line, and this index has
    one fact.
    """

    def __init__(self, graph: KnowledgeGraph) -> None:
        self.graph = graph
        self._facts: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for triple in graph.triples():
            label = graph.relations[triple.relation].label
            self._facts[triple.subject][label].append(triple.object)
        self._numeric = _numeric_labels(graph, self._facts)
        self._too_long = {
            (graph.entities[subject].kind, label)
            for subject, lines in self._facts.items()
            for label, objects in lines.items()
            if len(objects) > _MAX_OBJECTS
        }
        self._holders: dict[str, dict[Clue, frozenset[str]]] = {}

    def objects(self, subject: str, label: str) -> list[str]:
        """Ids of the entities in the line `label` of the subject."""
        return self._facts[subject].get(label, []) if subject in self._facts else []

    def labels(self, subject: str) -> list[str]:
        """Labels of the subject's lines."""
        return list(self._facts[subject]) if subject in self._facts else []

    def witnesses(self, subject: str) -> Iterator[Witness]:
        """Every clue that fits `subject`, once for each chain of lines that proves it."""
        for label, first in self._listed(subject):
            yield Witness(Clue((label,), self._value(subject, label, first)), (first,))
            for further, second in self._listed(first):
                value = self._value(first, further, second)
                yield Witness(Clue((label, further), value), (first, second))

    def holders(self, kind: str, clue: Clue) -> frozenset[str]:
        """Ids of the entities of `kind` that the clue fits."""
        if kind not in self._holders:
            found: dict[Clue, set[str]] = defaultdict(set)
            for entity in self.graph.entities.values():
                if entity.kind == kind:
                    for witness in self.witnesses(entity.entity_id):
                        found[witness.clue].add(entity.entity_id)
            self._holders[kind] = {one: frozenset(holders) for one, holders in found.items()}
        return self._holders[kind].get(clue, frozenset())

    def _listed(self, subject: str) -> Iterator[tuple[str, str]]:
        """Label and object of every line, without labels that have a long list for some subject.

        A label is left out for all subjects of its kind or for none, because a proof counts all
        holders.
        """
        if subject not in self._facts:
            return
        kind = self.graph.entities[subject].kind
        for label, objects in self._facts[subject].items():
            if (kind, label) not in self._too_long:
                for reached in objects:
                    yield label, reached

    def _value(self, subject: str, label: str, reached: str) -> str | Span:
        kind = self.graph.entities[subject].kind
        if (kind, label) not in self._numeric:
            return reached
        number = number_of(self.graph.entities[reached].name)
        assert number is not None, "a numeric label lists numbers alone"
        return span_of(number, years=self._numeric[kind, label])


def number_of(text: str) -> float | None:
    """`text` as a number, without a sign; None if it is none. Thousands may have commas."""
    stripped = text.strip()
    return float(stripped.replace(",", "")) if _NUMBER.fullmatch(stripped) else None


def span_of(number: float, *, years: bool) -> Span:
    """The decade of a year, or the range with bounds 1, 2, 5, 10 times 10^n that has the number."""
    if years:
        low = number - number % 10
        return Span(low, low + 10, is_decade=True)
    if number == 0:
        return Span(0, 1, is_decade=False)
    power = 10.0 ** math.floor(math.log10(number))
    if number < power:  # the logarithm was rounded up
        power /= 10
    low, high = next(
        (power * a, power * b) for a, b in pairwise(_STEPS) if number < power * b or b == _STEPS[-1]
    )
    return Span(low, high, is_decade=False)


def _numeric_labels(
    graph: KnowledgeGraph, facts: dict[str, dict[str, list[str]]]
) -> dict[tuple[str, str], bool]:
    """(Kind, label) of lines with nothing but numbers -> whether all of these are years."""
    texts: dict[tuple[str, str], set[str]] = defaultdict(set)
    for subject, lines in facts.items():
        for label, objects in lines.items():
            names = (graph.entities[reached].name.strip() for reached in objects)
            texts[graph.entities[subject].kind, label].update(names)
    return {
        key: all(_YEAR.fullmatch(name) for name in names)
        for key, names in texts.items()
        if all(number_of(name) is not None for name in names)
    }

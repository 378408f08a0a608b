"""Whether two formalizations are the same question: up to the names of variables and the order.

Colours are refined first (a node's colour is what it is joined to, round after round); nodes of
equal colour are then matched one by one. Refinement alone decides every tree. Only graphs made to
defeat it cost more, and `MAX_ENTRIES` bounds those.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence

from espalier.synthesis.webshaper.formalism.entries import Entry
from espalier.synthesis.webshaper.formalism.terms import Named, Target, Term
from espalier.synthesis.webshaper.formalism.topology import Node, Topology


def equivalent(first: Sequence[Entry], second: Sequence[Entry]) -> bool:
    """Whether some renaming of variables (and of the target) turns one into the other.

    The order of entries, of members of a set, and repeated entries do not matter.
    """
    one, other = ({_in_order(entry) for entry in entries} for entries in (first, second))
    if len(one) != len(other) or _without_nodes(one) != _without_nodes(other):
        return False
    palette: dict[Hashable, int] = {}
    colours, others = (_colours(entries, palette) for entries in (one, other))
    if Counter(colours.values()) != Counter(others.values()):
        return False
    by_colour: dict[int, list[Node]] = defaultdict(list)
    for node, colour in others.items():
        by_colour[colour].append(node)
    order = sorted(colours, key=lambda node: len(by_colour[colours[node]]))
    return _Matching([(node, by_colour[colours[node]]) for node in order], one, other).exists(0)


class _Matching:
    """The search for a one-to-one mapping that takes every entry of `one` into `other`."""

    def __init__(
        self, choices: list[tuple[Node, list[Node]]], one: set[Entry], other: set[Entry]
    ) -> None:
        self._choices = choices
        self._other = other
        self._mapping: dict[Term, Term] = {}
        self._entries: dict[Node, list[Entry]] = defaultdict(list)
        for entry in one:
            for end in {entry.subject, entry.object}:
                if not isinstance(end, Named):
                    self._entries[end].append(entry)

    def exists(self, position: int) -> bool:
        """Whether the nodes from `position` on can be mapped beside those before them."""
        if position == len(self._choices):
            return True
        node, candidates = self._choices[position]
        used = set(self._mapping.values())
        for candidate in candidates:
            if candidate in used:
                continue
            self._mapping[node] = candidate
            if all(map(self._holds, self._entries[node])) and self.exists(position + 1):
                return True
            del self._mapping[node]
        return False

    def _holds(self, entry: Entry) -> bool:
        """Whether the entry stands in the other formalization, as far as its ends are mapped."""
        subject, target = (
            end if isinstance(end, Named) else self._mapping.get(end)
            for end in (entry.subject, entry.object)
        )
        if subject is None or target is None:
            return True
        return Entry(subject, entry.relation, target) in self._other


def _colours(entries: set[Entry], palette: dict[Hashable, int]) -> dict[Node, int]:
    """Node -> colour, refined as often as there are nodes; equal colours, equal surroundings."""
    topology = Topology(tuple(entries))
    loops = Counter((e.subject, e.relation) for e in entries if e.subject == e.object)
    colours: dict[Node, int] = {}
    for node in topology.edges:
        own = sorted(relation for subject, relation in loops if subject == node)
        key = (isinstance(node, Target), tuple(own))
        colours[node] = palette.setdefault(key, len(palette))
    for _ in range(len(colours)):
        refined: dict[Node, int] = {}
        for node, edges in topology.edges.items():
            around = sorted(_seen_as(edge.entry, node, colours) for edge in edges)
            key = (colours[node], tuple(around))
            refined[node] = palette.setdefault(key, len(palette))
        colours = refined
    return colours


def _seen_as(entry: Entry, node: Node, colours: Mapping[Node, int]) -> tuple[str, ...]:
    """Relation, direction, and what stands at the other end."""
    forward = entry.object == node
    other = entry.subject if forward else entry.object
    shown = other.names if isinstance(other, Named) else (str(colours[other]),)
    return (entry.relation, str(forward), type(other).__name__, *shown)


def _in_order(entry: Entry) -> Entry:
    """The entry with the members of its sets sorted."""
    ends = (
        Named(tuple(sorted(end.names))) if isinstance(end, Named) else end
        for end in (entry.subject, entry.object)
    )
    subject, target = ends
    return Entry(subject, entry.relation, target)


def _without_nodes(entries: set[Entry]) -> set[Entry]:
    return {e for e in entries if isinstance(e.subject, Named) and isinstance(e.object, Named)}

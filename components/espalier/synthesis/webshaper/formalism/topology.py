"""Entries as a graph: variables and the target are its nodes, entries its edges.

Constants are ends and not nodes: a constant that stands in two entries joins nothing, since its
value is known in both.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple, TypeAlias

from espalier.synthesis.webshaper.formalism.entries import Entry
from espalier.synthesis.webshaper.formalism.terms import Named, Target, Variable

Node: TypeAlias = Variable | Target


class Edge(NamedTuple):
    """An entry as seen from one of its nodes."""

    entry: Entry
    other: Node | Named


class Topology:
    """Which nodes meet in which entries."""

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        self.entries = entries
        self.edges: dict[Node, list[Edge]] = defaultdict(list)
        """Node -> its entries in order; an entry about itself is not among them."""
        for entry in entries:
            for near, far in ((entry.subject, entry.object), (entry.object, entry.subject)):
                if isinstance(near, Named):
                    continue
                edges = self.edges[near]
                if near != far:
                    edges.append(Edge(entry, far))
        self.edges = dict(self.edges)

    @property
    def targets(self) -> list[Target]:
        """The distinct targets."""
        return [node for node in self.edges if isinstance(node, Target)]

    def components(self) -> list[set[Node]]:
        """Nodes that are joined by entries, part by part."""
        parts: list[set[Node]] = []
        seen: set[Node] = set()
        for start in self.edges:
            if start not in seen:
                part = set(self.distances(start))
                seen |= part
                parts.append(part)
        return parts

    def distances(self, start: Node) -> dict[Node, int]:
        """Entries between `start` and every node that it is joined to."""
        found = {start: 0}
        border = [start]
        while border:
            node = border.pop(0)
            for edge in self.edges[node]:
                if not isinstance(edge.other, Named) and edge.other not in found:
                    found[edge.other] = found[node] + 1
                    border.append(edge.other)
        return found

    def cycles(self) -> list[tuple[Node, ...]]:
        """One cycle for every entry beyond a spanning forest; two entries between a pair are one.

        Their number is that of independent cycles: entries between nodes - nodes + parts.
        """
        parent: dict[Node, Node | None] = {}
        used: set[int] = set()
        for start in self.edges:
            if start in parent:
                continue
            parent[start] = None
            border = [start]
            while border:
                node = border.pop(0)
                for number, other in self._joined(node):
                    if other not in parent:
                        parent[other] = node
                        used.add(number)
                        border.append(other)
        return [
            _closed(first, second, parent)
            for number, (first, second) in enumerate(self._pairs())
            if number not in used
        ]

    def leaves(self) -> list[Variable]:
        """Variables with a single entry, which leads to no constant: they narrow nothing down."""
        return [
            node
            for node, edges in self.edges.items()
            if isinstance(node, Variable)
            and len(edges) == 1
            and not isinstance(edges[0].other, Named)
        ]

    def _pairs(self) -> list[tuple[Node, Node]]:
        """The two nodes of every entry that has two different ones."""
        return [
            (entry.subject, entry.object)
            for entry in self.entries
            if not isinstance(entry.subject, Named)
            and not isinstance(entry.object, Named)
            and entry.subject != entry.object
        ]

    def _joined(self, node: Node) -> list[tuple[int, Node]]:
        return [
            (number, second if node == first else first)
            for number, (first, second) in enumerate(self._pairs())
            if node in (first, second)
        ]


def _closed(first: Node, second: Node, parent: dict[Node, Node | None]) -> tuple[Node, ...]:
    """The cycle that an entry between `first` and `second` closes over the spanning forest."""
    upward: list[Node] = []
    node: Node | None = first
    while node is not None:
        upward.append(node)
        node = parent[node]
    downward: list[Node] = []
    node = second
    while node is not None and node not in upward:
        downward.append(node)
        node = parent[node]
    meeting = upward.index(node) if node is not None else len(upward) - 1
    return (*upward[: meeting + 1], *reversed(downward))

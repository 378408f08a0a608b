"""Entries as a graph: variables and the target are its nodes, entries its edges.

Constants are ends and not nodes: a constant that stands in two entries joins nothing, since its
value is known in both.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import NamedTuple, TypeAlias

import networkx as nx

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
        self.entries = tuple(dict.fromkeys(entries))
        """Without repeats: an entry that stands twice joins nothing a second time."""
        self.edges: dict[Node, list[Edge]] = defaultdict(list)
        """Node -> its entries in order; an entry about itself is not among them."""
        for entry in self.entries:
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
        return [set(part) for part in nx.connected_components(self._graph)]

    def distances(self, start: Node) -> dict[Node, int]:
        """Entries between `start` and every node that it is joined to."""
        return dict(nx.single_source_shortest_path_length(self._graph, start))

    def cycles(self) -> list[list[Node]]:
        """One cycle for every entry beyond a spanning forest; two entries between a pair are one.

        Their number is that of independent cycles: entries between nodes - nodes + parts.
        """
        forest: nx.Graph[Node] = nx.Graph()
        forest.add_nodes_from(self.edges)
        found: list[list[Node]] = []
        for first, second in self._joined:
            if nx.has_path(forest, first, second):
                found.append(nx.shortest_path(forest, first, second))
            else:
                forest.add_edge(first, second)
        return found

    def leaves(self) -> list[Variable]:
        """Variables with a single entry, which leads to no constant: they narrow nothing down."""
        return [
            node
            for node, edges in self.edges.items()
            if isinstance(node, Variable)
            and len(edges) == 1
            and not isinstance(edges[0].other, Named)
        ]

    @cached_property
    def _graph(self) -> nx.Graph[Node]:
        graph: nx.Graph[Node] = nx.Graph()
        graph.add_nodes_from(self.edges)
        graph.add_edges_from(self._joined)
        return graph

    @property
    def _joined(self) -> list[tuple[Node, Node]]:
        """The two nodes of every entry that has two different ones."""
        return [
            (entry.subject, entry.object)
            for entry in self.entries
            if not isinstance(entry.subject, Named)
            and not isinstance(entry.object, Named)
            and entry.subject != entry.object
        ]

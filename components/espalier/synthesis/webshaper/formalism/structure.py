"""The shape of a question in figures: how deep, how wide, how many constants."""

from __future__ import annotations

from typing import NamedTuple

from espalier.synthesis.webshaper.formalism.answers import tree
from espalier.synthesis.webshaper.formalism.entries import Entry
from espalier.synthesis.webshaper.formalism.terms import Named, Variable


class Structure(NamedTuple):
    """Figures of one question whose entries are a tree around the target."""

    entries: int
    variables: int
    """Variables, without the target."""
    constants: int
    """Distinct names."""
    depth: int
    """Entries on the longest path from the target to a constant."""
    branching: int
    """Most entries that lead outwards from one node."""


def structure_of(entries: tuple[Entry, ...]) -> Structure:
    """The figures of a formalization.

    Raises:
        FormalismError: no tree of projections around one target.
    """
    topology = tree(entries)
    target = topology.targets[0]
    distances = topology.distances(target)
    named = [
        (node, edge.other)
        for node, edges in topology.edges.items()
        for edge in edges
        if isinstance(edge.other, Named)
    ]
    return Structure(
        entries=len(topology.entries),
        variables=sum(isinstance(node, Variable) for node in topology.edges),
        constants=len({name for _, constant in named for name in constant.names}),
        depth=max(distances[node] + 1 for node, _ in named),
        branching=max(len(edges) - (node != target) for node, edges in topology.edges.items()),
    )

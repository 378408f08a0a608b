"""What a formalization asks for: the entities of a graph that its target can be.

R(V) holds every entity that stands in relation R to a member of V, whichever end of the entry V
is (WebShaper, arXiv:2507.15061, sec. 3). Entries at one variable intersect; those of a union join.
On a tree the evaluation from the leaves to the target is exact; a cycle is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from espalier.knowledge import KnowledgeGraph
from espalier.records import DataError
from espalier.synthesis.webshaper.formalism.checks import check_entries
from espalier.synthesis.webshaper.formalism.entries import Entry, FormalismError
from espalier.synthesis.webshaper.formalism.kinds import Kind
from espalier.synthesis.webshaper.formalism.terms import Named
from espalier.synthesis.webshaper.formalism.topology import Node, Topology

MEMBER = "is one of the union"
"""Joins what may stand for a variable to that variable: all such entries of it are one union."""
SAME = "is"
"""The variable is this very entity; several such entries intersect."""

BEARABLE = frozenset({Kind.CONSTANT_BESIDE_TARGET, Kind.REPEATED_ENTRY})
"""Faults of a question that has an answer nevertheless."""


def answers(
    entries: tuple[Entry, ...], graph: KnowledgeGraph, ids: Mapping[str, str]
) -> frozenset[str]:
    """Ids of the entities that satisfy every entry; `ids` maps the names of constants to ids.

    Raises:
        FormalismError: a formalization that is no tree of projections around one target.
        DataError: a constant or relation that the graph lacks.
    """
    topology = tree(entries)
    return _Evaluation(topology, graph, ids).values(topology.targets[0], None)


def tree(entries: tuple[Entry, ...]) -> Topology:
    """The entries as a tree around their target.

    Raises:
        FormalismError: listing the faults that leave no such tree.
    """
    faults = tuple(f for f in check_entries(entries) if f.kind not in BEARABLE)
    if faults:
        raise FormalismError(faults)
    return Topology(entries)


class _Evaluation:
    def __init__(self, topology: Topology, graph: KnowledgeGraph, ids: Mapping[str, str]) -> None:
        self._topology = topology
        self._graph = graph
        self._ids = ids

    def values(self, node: Node, came_by: Entry | None) -> frozenset[str]:
        """What `node` can be by all its entries but the one that the walk came by."""
        constraints: list[frozenset[str]] = []
        union: list[frozenset[str]] = []
        for entry, other in self._topology.edges[node]:
            if entry == came_by:
                continue
            operand = self._named(other) if isinstance(other, Named) else self.values(other, entry)
            if entry.relation == MEMBER and entry.object != node:
                raise DataError(f"an entry {MEMBER!r} leads from a member to its union, not back")
            if entry.relation == MEMBER:
                union.append(operand)
            elif entry.relation == SAME:
                constraints.append(operand)
            else:
                constraints.append(self._projected(entry, node, operand))
        if union:
            constraints.append(frozenset[str]().union(*union))
        return frozenset.intersection(*constraints)

    def _projected(self, entry: Entry, node: Node, operand: frozenset[str]) -> frozenset[str]:
        if entry.relation not in self._graph.relations:
            raise DataError(
                f"the knowledge graph has no relation {entry.relation!r}; it has "
                f"{', '.join(sorted(self._graph.relations))}"
            )
        step = self._graph.objects if entry.object == node else self._graph.subjects
        return frozenset(found for entity in operand for found in step(entry.relation, entity))

    def _named(self, constant: Named) -> frozenset[str]:
        unknown = [name for name in constant.names if name not in self._ids]
        if unknown:
            raise DataError(f"the knowledge graph has no entity named {unknown[0]!r}")
        return frozenset(self._ids[name] for name in constant.names)

"""Between the two forms of a question: the tree of projections, and the list of entries.

A `Query` projects forward only, from what is read to what it names, so that a solver can walk it.
Entries may run either way; those that a reader of the documents cannot follow are refused here.
"""

from __future__ import annotations

from collections.abc import Mapping

from espalier.records import DataError
from espalier.synthesis.webshaper.formalism.answers import MEMBER, SAME, tree
from espalier.synthesis.webshaper.formalism.entries import Entry
from espalier.synthesis.webshaper.formalism.terms import Named, Target, Term, Variable
from espalier.synthesis.webshaper.formalism.topology import Node, Topology
from espalier.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Projection,
    Query,
    Union,
)


def entries_of(query: Query, names: Mapping[str, str]) -> tuple[Entry, ...]:
    """The entries of `query`, constants first; `names` maps entity ids to names."""
    return _Writer(names).entries(query)


def query_of(entries: tuple[Entry, ...], ids: Mapping[str, str]) -> Query:
    """The query of a formalization whose entries all lead towards the target.

    Raises:
        FormalismError: no tree of projections around one target.
        DataError: an entry that leads away from the target, or a name that `ids` lacks.
    """
    topology = tree(entries)
    return _Reader(topology, ids).query(topology.targets[0], None)


class _Writer:
    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._entries: list[Entry] = []
        self._variables = 0

    def entries(self, query: Query) -> tuple[Entry, ...]:
        self._constrain(query, Target())
        return tuple(self._entries)

    def _constrain(self, query: Query, node: Node) -> None:
        match query:
            case Projection(relation, inner):
                self._entries.append(Entry(self._operand(inner), relation, node))
            case Intersection(parts):
                for part in parts:
                    if isinstance(part, Projection | Intersection):
                        self._constrain(part, node)
                    else:
                        self._entries.append(Entry(self._operand(part), SAME, node))
            case Union(parts):
                for part in parts:
                    self._entries.append(Entry(self._operand(part), MEMBER, node))
            case Constant() | ConstantSet():
                self._entries.append(Entry(self._operand(query), SAME, node))

    def _operand(self, query: Query) -> Term:
        match query:
            case Constant(entity_id):
                return Named((self._names[entity_id],))
            case ConstantSet(entity_ids):
                return Named(tuple(dict.fromkeys(self._names[found] for found in entity_ids)))
            case _:
                self._variables += 1
                variable = Variable(f"X{self._variables}")
                self._constrain(query, variable)
                return variable


class _Reader:
    def __init__(self, topology: Topology, ids: Mapping[str, str]) -> None:
        self._topology = topology
        self._ids = ids

    def query(self, node: Node, came_by: Entry | None) -> Query:
        parts: list[Query] = []
        union: list[Query] = []
        for entry, other in self._topology.edges[node]:
            if entry == came_by:
                continue
            if entry.object != node:
                raise DataError(
                    f"the entry {entry.relation!r} leads away from the target: whoever reads the "
                    "documents finds the third item from the first. Turn it round by a relation "
                    "that runs the other way."
                )
            operand = self._named(other) if isinstance(other, Named) else self.query(other, entry)
            if entry.relation == MEMBER:
                union.append(operand)
            else:
                same = entry.relation == SAME
                parts.append(operand if same else Projection(entry.relation, operand))
        if union:
            parts.append(Union(tuple(union)))
        return parts[0] if len(parts) == 1 else Intersection(tuple(parts))

    def _named(self, constant: Named) -> Query:
        unknown = [name for name in constant.names if name not in self._ids]
        if unknown:
            raise DataError(f"the knowledge graph has no entity named {unknown[0]!r}")
        found = tuple(self._ids[name] for name in constant.names)
        return Constant(found[0]) if len(found) == 1 else ConstantSet(found)

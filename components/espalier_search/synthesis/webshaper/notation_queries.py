"""Entries evaluated on a knowledge graph, and converted to and from query trees.

R(V) holds every entity in relation R to a member of V, at whichever end of the entry V is
(WebShaper, arXiv:2507.15061, sec. 3). Entries at one variable intersect; those of a union are
united. On a tree the evaluation from the leaves to the target is exact; a cycle is refused.

A `Query` projects only forward, from the entity whose document is read to those that it names, so
that a solver can follow it. Entries may have either direction; those that a reader of the documents
cannot follow are refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from espalier.records import DataError
from espalier.records.knowledge import KnowledgeGraph
from espalier_search.synthesis.webshaper.notation import (
    Entry,
    Named,
    Target,
    Term,
    Variable,
)
from espalier_search.synthesis.webshaper.notation_checks import EntryGraph, Node, tree_of
from espalier_search.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Projection,
    Query,
    Union,
)

MEMBER = "is one of the union"
"""Relation from an alternative to its variable; all such entries of a variable are one union."""
SAME = "is"
"""Relation from an entity to the variable that equals it; several such entries intersect."""


def answers(
    entries: tuple[Entry, ...], graph: KnowledgeGraph, ids: Mapping[str, str]
) -> frozenset[str]:
    """Ids of the entities that satisfy every entry; `ids` maps the names of constants to ids.

    Raises:
        FormalismError: the entries are no tree of projections around one target.
        DataError: the graph lacks a constant or relation.
    """
    tree = tree_of(entries)
    return _Evaluation(tree, graph, ids).values(tree.targets[0], None)


class _Evaluation:
    def __init__(self, tree: EntryGraph, graph: KnowledgeGraph, ids: Mapping[str, str]) -> None:
        self._tree = tree
        self._graph = graph
        self._ids = ids

    def values(self, node: Node, came_by: Entry | None) -> frozenset[str]:
        """The entities that `node` can be by its entries other than `came_by`."""
        constraints: list[frozenset[str]] = []
        union: list[frozenset[str]] = []
        for entry, other in self._tree.edges[node]:
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


def entries_of(query: Query, names: Mapping[str, str]) -> tuple[Entry, ...]:
    """The entries of `query`, constants first; `names` maps entity ids to names."""
    return _EntryWriter(names).entries(query)


def query_of(entries: tuple[Entry, ...], ids: Mapping[str, str]) -> Query:
    """The query of a formalization whose entries all lead towards the target.

    Raises:
        FormalismError: the entries are no tree of projections around one target.
        DataError: an entry leads away from the target, or `ids` lacks a name.
    """
    tree = tree_of(entries)
    return _QueryBuilder(tree, ids).query(tree.targets[0], None)


class _EntryWriter:
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


class _QueryBuilder:
    def __init__(self, tree: EntryGraph, ids: Mapping[str, str]) -> None:
        self._tree = tree
        self._ids = ids

    def query(self, node: Node, came_by: Entry | None) -> Query:
        parts: list[Query] = []
        union: list[Query] = []
        for entry, other in self._tree.edges[node]:
            if entry == came_by:
                continue
            if entry.object != node:
                raise DataError(
                    f"the entry {entry.relation!r} leads away from the target, but a reader of the "
                    "documents can only go from the first item to the third. Reverse it with a "
                    "relation of the opposite direction."
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

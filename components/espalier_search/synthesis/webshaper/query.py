"""Queries as trees of knowledge projections (WebShaper, Tao et al. 2025, arXiv:2507.15061).

A knowledge projection R(V) is the set of entities in relation R to the set V. Here the projection
goes forward: R(V) holds the objects of R whose subject is in V, so that a solver who reads the
documents of V finds them. A question asks for the only entity of such a tree:

    currency(country([Lyon]))                          the currency of the country of Lyon
    capital((neighbours([A]) & neighbours([B])))       an intersection, then one projection more
    neighbours([A | B])                                R-Union: R({A}) + R({B}) = R({A, B})
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from espalier.records.knowledge import KnowledgeGraph

_PLAIN = re.compile(r"[\w:.\-]+(?: [\w:.\-]+)*")


@dataclass(frozen=True, slots=True)
class Constant:
    """An entity that the question names."""

    entity_id: str


@dataclass(frozen=True, slots=True)
class ConstantSet:
    """Several named entities as alternatives: the operand of an R-Union."""

    entity_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Projection:
    """The objects of `relation` whose subject is in `inner`."""

    relation: str
    inner: Query


@dataclass(frozen=True, slots=True)
class Intersection:
    """The entities in every part."""

    parts: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class Union:
    """The entities in at least one part."""

    parts: tuple[Query, ...]


Query: TypeAlias = Constant | ConstantSet | Projection | Intersection | Union


def children(query: Query) -> tuple[Query, ...]:
    """The queries directly below a node; constants have none."""
    match query:
        case Projection(_, inner):
            return (inner,)
        case Intersection(parts) | Union(parts):
            return parts
        case Constant() | ConstantSet():
            return ()


def nodes(query: Query) -> Iterator[Query]:
    """Every node of the tree, the root first."""
    yield query
    for child in children(query):
        yield from nodes(child)


def constants(query: Query) -> tuple[str, ...]:
    """Ids of the named entities, in reading order."""
    found: list[str] = []
    for node in nodes(query):
        if isinstance(node, Constant):
            found.append(node.entity_id)
        elif isinstance(node, ConstantSet):
            found.extend(node.entity_ids)
    return tuple(found)


def hops(query: Query) -> int:
    """Number of projections on the longest path from the target to a constant."""
    below = max((hops(child) for child in children(query)), default=0)
    return below + isinstance(query, Projection)


def canonical(query: Query) -> str:
    """A text that is equal for two queries exactly if they are the same question.

    Order and nesting of intersections and unions do not matter, nor do repeated parts.
    """
    match query:
        case Constant(entity_id):
            return f"[{_quoted(entity_id)}]"
        case ConstantSet(entity_ids):
            return f"[{' | '.join(sorted(map(_quoted, set(entity_ids))))}]"
        case Projection(relation, inner):
            return f"{_quoted(relation)}({canonical(inner)})"
        case Intersection():
            return _joined(" & ", query)
        case Union():
            return _joined(" + ", query)


def signature(query: Query) -> str:
    """The canonical text with `C` for every constant: the query's relations and shape."""
    match query:
        case Constant():
            return "C"
        case ConstantSet(entity_ids):
            return "|".join("C" for _ in entity_ids)
        case Projection(relation, inner):
            return f"{_quoted(relation)}({signature(inner)})"
        case Intersection(parts):
            return f"({' & '.join(sorted(map(signature, parts)))})"
        case Union(parts):
            return f"({' + '.join(sorted(map(signature, parts)))})"


def _joined(separator: str, query: Intersection | Union) -> str:
    """Sorted distinct texts of the parts, nested nodes of the same type flattened."""
    texts: set[str] = set()
    pending = list(query.parts)
    while pending:
        part = pending.pop()
        # a node whose parts are all the same question is that question
        while isinstance(part, Intersection | Union) and len(set(map(canonical, part.parts))) == 1:
            part = part.parts[0]
        if isinstance(part, Intersection | Union) and type(part) is type(query):
            pending.extend(part.parts)
        else:
            texts.add(canonical(part))
    return texts.pop() if len(texts) == 1 else f"({separator.join(sorted(texts))})"


def _quoted(name: str) -> str:
    """The name as it is, or as a JSON string if it contains characters of the notation."""
    return name if _PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False)


class Read(NamedTuple):
    """One line that a solver reads: that of `relation` in the document of `subject`."""

    subject: str
    relation: str
    objects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """The answers of a query, and the lines read to find them."""

    answers: frozenset[str]
    reads: tuple[Read, ...]
    """All reads, in an order that a solver can follow: constants first."""
    last_reads: tuple[Read, ...]
    """The reads whose lines list the answers."""


def evaluate(query: Query, graph: KnowledgeGraph) -> frozenset[str]:
    """Every entity that satisfies `query`."""
    return _answers(query, graph, [])


def trace(query: Query, graph: KnowledgeGraph) -> Trace:
    """Evaluate `query` and record every line read."""
    reads: list[Read] = []
    answers = _answers(query, graph, reads)
    last: list[Read] = []
    for projection in _outermost(query):
        for subject in sorted(evaluate(projection.inner, graph)):
            last.append(
                Read(subject, projection.relation, graph.objects(projection.relation, subject))
            )
    return Trace(answers, tuple(dict.fromkeys(reads)), tuple(dict.fromkeys(last)))


def _answers(query: Query, graph: KnowledgeGraph, reads: list[Read]) -> frozenset[str]:
    match query:
        case Constant(entity_id):
            return frozenset((entity_id,))
        case ConstantSet(entity_ids):
            return frozenset(entity_ids)
        case Projection(relation, inner):
            found: set[str] = set()
            for subject in sorted(_answers(inner, graph, reads)):
                objects = graph.objects(relation, subject)
                reads.append(Read(subject, relation, objects))
                found.update(objects)
            return frozenset(found)
        case Intersection(parts):
            return frozenset.intersection(*(_answers(part, graph, reads) for part in parts))
        case Union(parts):
            return frozenset[str]().union(*(_answers(part, graph, reads) for part in parts))


def _outermost(query: Query) -> list[Projection]:
    """The projections whose objects may be answers."""
    match query:
        case Projection():
            return [query]
        case Intersection(parts) | Union(parts):
            return [projection for part in parts for projection in _outermost(part)]
        case Constant() | ConstantSet():
            return []

"""Running a query on the graph: its answers, and what a solver reads on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from espalier.knowledge import KnowledgeGraph
from espalier.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Projection,
    Query,
    Union,
)


class Read(NamedTuple):
    """One look into one document: the line of `relation` in the document of `subject`."""

    subject: str
    relation: str
    objects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """How a query comes to its answers."""

    answers: frozenset[str]
    reads: tuple[Read, ...]
    """In the order in which a solver can make them: constants first."""
    last_reads: tuple[Read, ...]
    """Those whose line holds the answer itself."""


def evaluate(query: Query, graph: KnowledgeGraph) -> frozenset[str]:
    """Every entity that satisfies `query`."""
    return _answers(query, graph, [])


def trace(query: Query, graph: KnowledgeGraph) -> Trace:
    """Evaluate `query` and keep what was read."""
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
    """The projections whose objects are candidates for the answer."""
    match query:
        case Projection():
            return [query]
        case Intersection(parts) | Union(parts):
            return [projection for part in parts for projection in _outermost(part)]
        case Constant() | ConstantSet():
            return []

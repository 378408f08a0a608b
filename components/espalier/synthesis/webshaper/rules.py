"""What makes a query a fair question: one function a rule, its docstring says why it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from espalier.synthesis.webshaper.candidate import Candidate
from espalier.synthesis.webshaper.evaluate import evaluate
from espalier.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Projection,
    Query,
    Union,
    constants,
    hops,
    nodes,
)
from espalier.synthesis.webshaper.shortcuts import (
    answer_in_earlier_document,
    answer_on_chain,
    answer_twice_in_last_document,
    shorter_chain,
    skippable_step,
    unreadable_line,
)

Rule = Callable[[Candidate], bool]
"""Whether the candidate breaks the rule."""


def not_unique(candidate: Candidate) -> bool:
    """The query has no answer, or several: no gold answer could be proven."""
    return len(candidate.trace.answers) != 1


def constant_beside_target(candidate: Candidate) -> bool:
    """From two projections on, one projection from a constant already yields the target.

    A single projection R({C}) is the seed form: its constant stands beside the target by nature.
    """
    if hops(candidate.query) < 2:
        return False
    return any(
        isinstance(node, Constant | ConstantSet)
        or (isinstance(node, Projection) and isinstance(node.inner, Constant | ConstantSet))
        for node in _beside_target(candidate.query)
    )


def constant_constant_edge(candidate: Candidate) -> bool:
    """A constant is constrained by another: the entry narrows nothing down."""
    return any(
        isinstance(part, Constant | ConstantSet)
        for node in nodes(candidate.query)
        if isinstance(node, Intersection | Union)
        for part in node.parts
    )


def ambiguous_step(candidate: Candidate) -> bool:
    """An intermediate is not the one entity that the question speaks of."""
    return any(
        len(evaluate(node.inner, candidate.world.graph)) != _width(node.inner)
        for node in nodes(candidate.query)
        if isinstance(node, Projection)
    )


def redundant_constraint(candidate: Candidate) -> bool:
    """An intersected constraint can be dropped without a change of the answers."""
    graph = candidate.world.graph
    return any(
        evaluate(relaxed, graph) == candidate.trace.answers
        for relaxed in relaxed_queries(candidate.query)
    )


def repeated_constant(candidate: Candidate) -> bool:
    """The question names the same entity twice."""
    named = constants(candidate.query)
    return len(set(named)) < len(named)


def empty_union_member(candidate: Candidate) -> bool:
    """A member of a union contributes nothing."""
    graph = candidate.world.graph
    for node in nodes(candidate.query):
        if isinstance(node, Union) and not all(evaluate(part, graph) for part in node.parts):
            return True
        if isinstance(node, Projection) and isinstance(node.inner, ConstantSet):
            members = node.inner.entity_ids
            if not all(graph.objects(node.relation, member) for member in members):
                return True
    return False


RULES: tuple[Rule, ...] = (
    not_unique,
    answer_on_chain,
    answer_in_earlier_document,
    answer_twice_in_last_document,
    constant_beside_target,
    constant_constant_edge,
    repeated_constant,
    redundant_constraint,
    ambiguous_step,
    empty_union_member,
    unreadable_line,
    shorter_chain,
    skippable_step,
)
"""In the order of judging: `not_unique` first, as others speak of the answer."""


def broken_rule(candidate: Candidate) -> str | None:
    """Name of the first rule that the candidate breaks, or None for a fair question."""
    return next((rule.__name__ for rule in RULES if rule(candidate)), None)


def relaxed_queries(query: Query) -> Iterator[Query]:
    """The query with one part of one intersection dropped, for every such part."""
    match query:
        case Projection(_, inner):
            for relaxed in relaxed_queries(inner):
                yield replace(query, inner=relaxed)
        case Intersection(parts) | Union(parts):
            for position, part in enumerate(parts):
                rest = parts[:position] + parts[position + 1 :]
                if isinstance(query, Intersection) and rest:
                    yield replace(query, parts=rest)
                for relaxed in relaxed_queries(part):
                    yield replace(query, parts=(*parts[:position], relaxed, *parts[position + 1 :]))


def _beside_target(query: Query) -> list[Query]:
    if isinstance(query, Intersection | Union):
        return [node for part in query.parts for node in _beside_target(part)]
    return [query]


def _width(query: Query) -> int:
    """How many entities a question means by this node."""
    match query:
        case ConstantSet(entity_ids):
            return len(entity_ids)
        case Projection(_, inner):
            return _width(inner)
        case Union(parts):
            return sum(_width(part) for part in parts)
        case Constant() | Intersection():
            return 1

"""Rules for a fair question: one function per rule, True if a candidate breaks it.

The first group checks the documents (no shortcut past the chain, every line readable), the second
the shape of the query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

from espalier.records.knowledge import Triple
from espalier_search.synthesis.webshaper.candidate import CandidateQuestion, World
from espalier_search.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Projection,
    Query,
    Union,
    constants,
    evaluate,
    hops,
    nodes,
)


def answer_on_chain(candidate: CandidateQuestion) -> bool:
    """The question names the answer, or the answer is also an intermediate."""
    world = candidate.world
    answer = world.folded_name(candidate.answer)
    earlier = (*constants(candidate.query), *candidate.subjects)
    return any(world.folded_name(entity) == answer for entity in earlier)


def named_in_no_sentence(candidate: CandidateQuestion) -> bool:
    """A document of prose, which has no lines of triples, does not name an entity of the chain."""
    statements = candidate.world.statements
    return not all(map(statements.is_object_named, candidate.triples_in_prose))


def stated_in_no_sentence(candidate: CandidateQuestion) -> bool:
    """A document of prose names an entity of the chain, but no sentence states the relation."""
    return not all(map(candidate.world.statements.sentences, candidate.triples_in_prose))


def answer_in_earlier_document(candidate: CandidateQuestion) -> bool:
    """A document read before the last step names the answer, so the chain need not be followed."""
    evidence = candidate.world.evidence
    name = candidate.world.folded_name(candidate.answer)
    return any(evidence.occurrences(name, document) for document in candidate.earlier_documents)


def answer_twice_in_last_document(candidate: CandidateQuestion) -> bool:
    """The last document names the answer outside of the requested line, in another statement.

    A sentence that states the triple of that line is evidence for the answer, not a shortcut. In
    prose such sentences take the place of the line.
    """
    world = candidate.world
    name = world.folded_name(candidate.answer)
    for read in candidate.trace.last_reads:
        besides = world.evidence.occurrences(name, candidate.document(read.subject))
        besides -= not world.statements.is_prose(read.subject)
        if besides > 0 and candidate.answer in read.objects:
            triple = Triple(read.subject, read.relation, candidate.answer)
            besides -= world.statements.occurrences(triple)
        if besides > 0:
            return True
    return False


def shorter_chain(candidate: CandidateQuestion) -> bool:
    """The chain yields the same answer with one or more relations left out."""
    labels, start = _chain(candidate)
    world = candidate.world
    for length in range(1, len(labels)):
        for kept in combinations(labels, length):
            reached = frozenset((start,))
            for label in kept:
                found = (world.labelled(label, entity) for entity in reached)
                reached = frozenset[str]().union(*found)
            if reached == candidate.trace.answers:
                return True
    return False


def skippable_step(candidate: CandidateQuestion) -> bool:
    """A join yields the same answer with steps left out (for chains see `shorter_chain`)."""
    if _chain(candidate)[0]:
        return False
    steps = [node for node in nodes(candidate.query) if isinstance(node, Projection)]
    return any(
        _reached(candidate.query, candidate.world, frozenset(map(id, left_out)))
        == candidate.trace.answers
        for number in range(1, len(steps))
        for left_out in combinations(steps, number)
    )


def unreadable_line(candidate: CandidateQuestion) -> bool:
    """The split's solvers lack a line of the chain, or an observation would truncate it.

    A list may be shorter than in the graph, because views hide names, but must have the entities on
    the chain. In prose, a sentence that states the triple is read in place of the line.
    """
    chain = set(candidate.entities)
    if not all(map(candidate.world.is_readable, candidate.triples_in_prose)):
        return True
    for read in candidate.trace.reads:
        if candidate.world.statements.is_prose(read.subject):
            continue
        line = candidate.line(read)
        if line is None or len(line.split()) > candidate.world.max_line_words:
            return True
        listed = set(line.split("; "))
        if not listed.issuperset(candidate.name(e) for e in read.objects if e in chain):
            return True
        if not listed.issubset(candidate.name(e) for e in read.objects):
            return True
    return False


def _chain(candidate: CandidateQuestion) -> tuple[list[str], str]:
    """Labels from the constant outwards, and the constant; no labels if the query is no chain."""
    labels: list[str] = []
    node = candidate.query
    while isinstance(node, Projection):
        labels.append(candidate.world.graph.relations[node.relation].label)
        node = node.inner
    return (labels[::-1], node.entity_id) if isinstance(node, Constant) else ([], "")


def _reached(query: Query, world: World, left_out: frozenset[int]) -> frozenset[str]:
    """Entities reached along lines of documents, skipping the projections in `left_out` (ids)."""
    match query:
        case Projection(relation, inner):
            found = _reached(inner, world, left_out)
            if id(query) in left_out:
                return found
            label = world.graph.relations[relation].label
            return frozenset(o for entity in found for o in world.labelled(label, entity))
        case Constant(entity_id):
            return frozenset((entity_id,))
        case ConstantSet(entity_ids):
            return frozenset(entity_ids)
        case Intersection(parts):
            return frozenset.intersection(*(_reached(p, world, left_out) for p in parts))
        case Union(parts):
            return frozenset[str]().union(*(_reached(p, world, left_out) for p in parts))


Rule = Callable[[CandidateQuestion], bool]
"""A function that tells whether a candidate breaks the rule."""


def not_unique(candidate: CandidateQuestion) -> bool:
    """The query has no answer or several, so no gold answer can be proven."""
    return len(candidate.trace.answers) != 1


def constant_beside_target(candidate: CandidateQuestion) -> bool:
    """In a query of two hops or more, a single projection from a constant yields the target.

    A single projection R({C}) is the seed form, in which the constant is always next to the target.
    """
    if hops(candidate.query) < 2:
        return False
    return any(
        isinstance(node, Constant | ConstantSet)
        or (isinstance(node, Projection) and isinstance(node.inner, Constant | ConstantSet))
        for node in _beside_target(candidate.query)
    )


def constant_constant_edge(candidate: CandidateQuestion) -> bool:
    """Two constants constrain each other, which excludes no answer."""
    return any(
        isinstance(part, Constant | ConstantSet)
        for node in nodes(candidate.query)
        if isinstance(node, Intersection | Union)
        for part in node.parts
    )


def ambiguous_step(candidate: CandidateQuestion) -> bool:
    """An intermediate step leads to more or fewer entities than the question's wording implies."""
    return any(
        len(evaluate(node.inner, candidate.world.graph)) != _width(node.inner)
        for node in nodes(candidate.query)
        if isinstance(node, Projection)
    )


def redundant_constraint(candidate: CandidateQuestion) -> bool:
    """The answers stay the same with one part of an intersection dropped."""
    graph = candidate.world.graph
    return any(
        evaluate(relaxed, graph) == candidate.trace.answers
        for relaxed in relaxed_queries(candidate.query)
    )


def repeated_constant(candidate: CandidateQuestion) -> bool:
    """The question names the same entity twice."""
    named = constants(candidate.query)
    return len(set(named)) < len(named)


def empty_union_member(candidate: CandidateQuestion) -> bool:
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
    named_in_no_sentence,
    stated_in_no_sentence,
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
"""The rules in the order of judging; `not_unique` is first, as later rules need a unique answer."""


def broken_rule(candidate: CandidateQuestion) -> str | None:
    """Name of the first rule that the candidate breaks; None for a fair question."""
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
    """Number of entities that the question's wording implies for this node."""
    match query:
        case ConstantSet(entity_ids):
            return len(entity_ids)
        case Projection(_, inner):
            return _width(inner)
        case Union(parts):
            return sum(_width(part) for part in parts)
        case Constant() | Intersection():
            return 1

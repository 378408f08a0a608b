"""Rules about what a solver can read: no shortcut past the chain, and every line readable."""

from __future__ import annotations

from itertools import combinations

from espalier.knowledge import Triple
from espalier.synthesis.webshaper.candidate import Candidate, World
from espalier.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Projection,
    Query,
    Union,
    constants,
    nodes,
)


def answer_on_chain(candidate: Candidate) -> bool:
    """The answer is named by the question, or met as an intermediate."""
    world = candidate.world
    answer = world.folded_name(candidate.answer)
    earlier = (*constants(candidate.query), *candidate.subjects)
    return any(world.folded_name(entity) == answer for entity in earlier)


def answer_in_earlier_document(candidate: Candidate) -> bool:
    """The answer can be read before the last step: the chain need not be followed."""
    evidence = candidate.world.evidence
    name = candidate.world.folded_name(candidate.answer)
    return any(evidence.occurrences(name, document) for document in candidate.earlier_documents)


def answer_twice_in_last_document(candidate: Candidate) -> bool:
    """The last document names the answer outside the line asked for, and not to say the same.

    A sentence that states the triple of that line is the evidence for the answer, not a shortcut.
    """
    world = candidate.world
    name = world.folded_name(candidate.answer)
    for read in candidate.trace.last_reads:
        besides = world.evidence.occurrences(name, candidate.document(read.subject)) - 1
        if besides > 0 and candidate.answer in read.objects:
            triple = Triple(read.subject, read.relation, candidate.answer)
            besides -= world.statements.occurrences(triple)
        if besides > 0:
            return True
    return False


def shorter_chain(candidate: Candidate) -> bool:
    """Leaving out relations of the chain, up to all but one, yields the same answer."""
    labels, start = _chain(candidate)
    return any(
        _follow(candidate.world, start, kept) == candidate.trace.answers
        for length in range(1, len(labels))
        for kept in combinations(labels, length)
    )


def skippable_step(candidate: Candidate) -> bool:
    """Leaving out steps somewhere in a join yields the same answer (chains: `shorter_chain`)."""
    if _chain(candidate)[0]:
        return False
    steps = [node for node in nodes(candidate.query) if isinstance(node, Projection)]
    return any(
        _reached(candidate.query, candidate.world, frozenset(map(id, left_out)))
        == candidate.trace.answers
        for number in range(1, len(steps))
        for left_out in combinations(steps, number)
    )


def unreadable_line(candidate: Candidate) -> bool:
    """The split's solvers lack a line of the chain, or an observation would cut it short.

    A list may be shorter than in the graph, as a view hides names; what the chain needs is there.
    """
    chain = set(candidate.entities)
    for read in candidate.trace.reads:
        line = candidate.line(read)
        if line is None or len(line.split()) > candidate.world.max_line_words:
            return True
        listed = set(line.split("; "))
        if not listed.issuperset(candidate.name(e) for e in read.objects if e in chain):
            return True
        if not listed.issubset(candidate.name(e) for e in read.objects):
            return True
    return False


def _chain(candidate: Candidate) -> tuple[list[str], str]:
    """Labels from the constant outwards, and the constant; no labels where it is not a chain."""
    labels: list[str] = []
    node = candidate.query
    while isinstance(node, Projection):
        labels.append(candidate.world.graph.relations[node.relation].label)
        node = node.inner
    return (labels[::-1], node.entity_id) if isinstance(node, Constant) else ([], "")


def _reached(query: Query, world: World, left_out: frozenset[int]) -> frozenset[str]:
    """What the query leads to by the lines of documents, without the projections left out."""
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


def _follow(world: World, start: str, labels: tuple[str, ...]) -> frozenset[str]:
    reached = frozenset((start,))
    for label in labels:
        reached = frozenset(found for entity in reached for found in world.labelled(label, entity))
    return reached

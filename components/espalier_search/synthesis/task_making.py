"""Tasks from fair queries, worded as questions, and from a user's own questions.

Every relation has several phrasings and every question several frames; the choice depends only on
the seed and the query's canonical text. A question that would be too long gets the shortest
phrasing of each relation.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from espalier.environments.contract import View
from espalier.records import Message, Split, Task, TaskMetadata, Verifier, task_id_of
from espalier.records.folding import folded_name
from espalier.records.knowledge import KnowledgeGraph
from espalier_search.knowledge.phrasing import AMOUNTS, PEOPLE, TIMES, UNTYPED
from espalier_search.synthesis.inverted.teaching import ClueRoute
from espalier_search.synthesis.own_questions import OwnQuestion
from espalier_search.synthesis.teacher import Route, route_of
from espalier_search.synthesis.webshaper.candidate import CandidateQuestion
from espalier_search.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Projection,
    Query,
    Union,
    canonical,
    hops,
    nodes,
    signature,
)

MAX_QUESTION_WORDS = 32
FRAMES = (
    "What is {np}?",
    "Which {kind} is {np}?",
    "Name {np}.",
    "Tell me {np}.",
    "Find {np}.",
)
JOINED_FRAMES = (
    "Which {kind} is {np}?",
    "What is the {kind} that is {np}?",
    "Name the {kind} that is {np}.",
    "Find the {kind} that is {np}.",
)
"""Frames for an intersection or union at the root, which has no article of its own."""
CONJUNCTIONS = ("{a} and also {b}", "both {a} and {b}")

Choice = Callable[[Sequence[str]], str]


def question_text(query: Query, answer_kind: str, graph: KnowledgeGraph, seed: int) -> str:
    """The question that asks for `query`, whose answer is an entity of `answer_kind`."""
    rng = random.Random(f"{seed}/{canonical(query)}")
    text = _sentence(query, answer_kind, graph, rng.choice)
    if len(text.split()) > MAX_QUESTION_WORDS:
        text = _sentence(query, answer_kind, graph, _shortest)
    return text


def _sentence(query: Query, answer_kind: str, graph: KnowledgeGraph, choose: Choice) -> str:
    frames = FRAMES if isinstance(query, Projection) else JOINED_FRAMES
    frame = choose(frames)
    phrase = _noun_phrase(query, graph, choose)
    if frame == "What is {np}?" and answer_kind in PEOPLE:
        frame = "Who is {np}?"
    elif (
        frame == "Which {kind} is {np}?"
        and isinstance(query, Projection)
        # "which year" would be followed by "the year in which"
        and answer_kind in (UNTYPED, *AMOUNTS, *TIMES)
    ):
        frame = "What is {np}?"
    return frame.format(kind=answer_kind, np=phrase)


def _noun_phrase(query: Query, graph: KnowledgeGraph, choose: Choice) -> str:
    match query:
        case Constant(entity_id):
            return graph.entities[entity_id].name
        case ConstantSet(entity_ids):
            return " or ".join(graph.entities[entity_id].name for entity_id in entity_ids)
        case Projection(relation, inner):
            phrase = _noun_phrase(inner, graph, choose)
            if isinstance(inner, Intersection | Union):
                phrase = f"the {_kind(inner, graph)} that is {phrase}"
            phrasings: Sequence[str] = graph.relations[relation].phrasings
            if not isinstance(inner, Constant | ConstantSet):
                # where {x} becomes a long phrase, a phrasing that ends with {x} reads better
                phrasings = [text for text in phrasings if text.endswith("{x}")] or phrasings
            return choose(phrasings).replace("{x}", phrase)
        case Intersection(parts):
            phrases = [_noun_phrase(part, graph, choose) for part in parts]
            if len(phrases) != 2:
                return " and also ".join(phrases)
            return choose(CONJUNCTIONS).format(a=phrases[0], b=phrases[1])
        case Union(parts):
            return " or ".join(_noun_phrase(part, graph, choose) for part in parts)


def _kind(query: Query, graph: KnowledgeGraph) -> str:
    """The kind of entity that an intersection or union leads to."""
    while isinstance(query, Intersection | Union):
        query = query.parts[0]
    if isinstance(query, Projection):
        return graph.relations[query.relation].object_kind
    return "one"


def _shortest(options: Sequence[str]) -> str:
    return min(options, key=lambda option: (len(option.split()), option))


INDEX_OF_SPLIT: Mapping[Split, View] = {"train": "train", "dev": "dev", "heldout": "full"}
"""Split -> the view of the index that its tasks search."""
OWN = "own"
"""Kind and source of a user's own questions."""
MADE = "made"
"""Source of questions made from documents in the wording of a user's own questions."""
DRAWN = "webshaper"
"""Source of questions drawn by signature."""
GROWN = "expansion"
"""Source of questions grown layer by layer."""
INVERTED = "inverted"
"""Kind and source of inverted questions, which are made from the answer."""


@dataclass(frozen=True, slots=True)
class RoutedTask:
    """A task, and the route for its teacher; None for a user's own question."""

    task: Task
    route: Route | ClueRoute | None


def formal_question(
    candidate: CandidateQuestion, split: Split, seed: int, source: str = DRAWN
) -> RoutedTask:
    """The task and route of a fair query."""
    query, graph = candidate.query, candidate.world.graph
    answer = graph.entities[candidate.answer]
    text = canonical(query)
    documents = (candidate.document(read.subject) for read in candidate.trace.reads)
    metadata = TaskMetadata(
        split=split,
        source=source,
        pattern=signature(query),
        difficulty=hops(query),
        extra={
            "kind": kind_of(query),
            "hops": hops(query),
            "query": text,
            "entities": [candidate.name(entity_id) for entity_id in candidate.entities],
            "evidence": list(dict.fromkeys(documents)),
        },
    )
    prompt = question_text(query, answer.kind, graph, seed)
    return RoutedTask(search_task(prompt, (answer.name,), text, metadata), route_of(query, graph))


def own_question(own: OwnQuestion, source: str = OWN) -> RoutedTask:
    """The task of a user's own question, or of a question made in its wording."""
    text = f"{own.question}\t{own.document_id}"
    metadata = TaskMetadata(
        split=own.split,
        source=source,
        difficulty=1,
        extra={
            "kind": OWN,
            "hops": 1,
            "evidence": [own.document_id] if own.document_id else [],
        },
    )
    return RoutedTask(search_task(own.question, own.answers, text, metadata), None)


def kind_of(query: Query) -> str:
    """`union` if the query contains one, else `intersection` if it contains one, else `chain`."""
    found = list(nodes(query))
    if any(isinstance(node, Union | ConstantSet) for node in found):
        return "union"
    return "intersection" if any(isinstance(node, Intersection) for node in found) else "chain"


def search_task(prompt: str, gold: tuple[str, ...], text: str, metadata: TaskMetadata) -> Task:
    """The task of a question; `text` identifies the question within its split."""
    return Task(
        task_id=task_id_of(metadata.split, text),
        prompt=(Message(role="user", content=prompt),),
        environment="search_qa",
        arguments={"index": INDEX_OF_SPLIT[metadata.split]},
        verifier=Verifier(gold=gold),
        metadata=metadata,
    )


def fact_of(task: Task) -> str:
    """A key that tasks about the same fact share: the query, or else documents and answer."""
    query = task.extra.get("query")
    return (
        str(query) if query else "\t".join((*evidence_of(task), folded_name(task.verifier.gold[0])))
    )


def evidence_of(task: Task) -> tuple[str, ...]:
    """Ids of the documents that a solver needs, in reading order."""
    found = task.extra.get("evidence")
    return tuple(map(str, found)) if isinstance(found, list) else ()

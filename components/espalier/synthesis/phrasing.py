"""Questions in words: a sentence frame around noun phrases that nest like the query.

Every relation has several phrasings and every question several frames; which ones a question gets
depends on the seed and its canonical text alone. A question that would grow too long falls back to
the shortest phrasing of each relation.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from espalier.knowledge import KnowledgeGraph, Relation
from espalier.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Projection,
    Query,
    Union,
    canonical,
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
"""For an intersection or union at the root, which is no noun phrase with an article of its own."""
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
    return choose(frames).format(kind=answer_kind, np=_noun_phrase(query, graph, choose))


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
            return choose(_phrasings(graph.relations[relation], inner)).replace("{x}", phrase)
        case Intersection(parts):
            phrases = [_noun_phrase(part, graph, choose) for part in parts]
            if len(phrases) != 2:
                return " and also ".join(phrases)
            return choose(CONJUNCTIONS).format(a=phrases[0], b=phrases[1])
        case Union(parts):
            return " or ".join(_noun_phrase(part, graph, choose) for part in parts)


def _phrasings(relation: Relation, inner: Query) -> Sequence[str]:
    """Around anything but a name, only phrasings that end with it: others nest unreadably."""
    if isinstance(inner, Constant | ConstantSet):
        return relation.phrasings
    return [text for text in relation.phrasings if text.endswith("{x}")] or relation.phrasings


def _kind(query: Query, graph: KnowledgeGraph) -> str:
    """What kind of entity an intersection or union holds."""
    while isinstance(query, Intersection | Union):
        query = query.parts[0]
    if isinstance(query, Projection):
        return graph.relations[query.relation].object_kind
    return "one"


def _shortest(options: Sequence[str]) -> str:
    return min(options, key=lambda option: (len(option.split()), option))

"""The wording of inverted questions, as tasks with the routes of their clues.

Which country has these facts: the currency of it is Euro; the time zone of the capital of it is
Europe/Rome; and what it was founded in lies in the 1860s?
"""

from __future__ import annotations

import random

from espalier.records import Split, TaskMetadata
from espalier.records.knowledge import KnowledgeGraph
from espalier_search.synthesis.inverted.clues import Span, Witness
from espalier_search.synthesis.inverted.drawing import InvertedQuestion
from espalier_search.synthesis.inverted.teaching import ClueRoute, RouteClue
from espalier_search.synthesis.task_making import INVERTED, RoutedTask, search_task

_UNTYPED = "entity"


def inverted_question(
    question: InvertedQuestion, graph: KnowledgeGraph, split: Split, seed: int
) -> RoutedTask:
    """The task and the route of an inverted question."""
    target = graph.entities[question.target]
    text = question.canonical
    rng = random.Random(f"{seed}/{text}")
    subjects = [
        subject for _, reached in question.witnesses for subject in (question.target, *reached[:-1])
    ]
    documents = (graph.entities[subject].document_id for subject in subjects)
    metadata = TaskMetadata(
        split=split,
        source=INVERTED,
        pattern=question.signature,
        difficulty=question.num_lines,
        extra={
            "kind": INVERTED,
            "hops": question.num_lines,
            "query": text,
            "entities": [graph.entities[entity_id].name for entity_id in question.entities],
            "evidence": list(dict.fromkeys(documents)),
        },
    )
    prompt = _worded(question, graph, rng)
    route = ClueRoute(tuple(_route_clue(witness, graph) for witness in question.witnesses))
    return RoutedTask(search_task(prompt, (target.name,), text, metadata), route)


def _worded(question: InvertedQuestion, graph: KnowledgeGraph, rng: random.Random) -> str:
    kind = graph.entities[question.target].kind
    thing = "thing" if kind == _UNTYPED else kind
    *most, last = [_clause(question.target, witness, graph, rng) for witness in question.witnesses]
    return f"Which {thing} has these facts: {'; '.join(most)}; and {last}?"


def _clause(target: str, witness: Witness, graph: KnowledgeGraph, rng: random.Random) -> str:
    """One clue as a sentence about "it"."""
    phrase = "it"
    for subject, label in zip((target, *witness.reached), witness.clue.labels, strict=False):
        phrase = _around(phrase, graph.entities[subject].kind, label, graph, rng)
    value = witness.clue.value
    if isinstance(value, str):
        return f"{phrase} is {graph.entities[value].name}"
    return f"{phrase} {_lies(value)}"


def _around(inner: str, kind: str, label: str, graph: KnowledgeGraph, rng: random.Random) -> str:
    """A phrasing of the relation around `inner`, preferably one that ends with it."""
    relations = graph.relations.values()
    relation = next(r for r in relations if (r.subject_kind, r.label) == (kind, label))
    nesting = [said for said in relation.phrasings if said.endswith("{x}")]
    return rng.choice(nesting or relation.phrasings).replace("{x}", inner)


def _lies(span: Span) -> str:
    if span.is_decade:
        return f"lies in the {span.low:.0f}s"
    return f"is {_number(span.low)} or more and less than {_number(span.high)}"


def _number(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else f"{number:.10g}"


def _route_clue(witness: Witness, graph: KnowledgeGraph) -> RouteClue:
    value = witness.clue.value
    named = value if isinstance(value, Span) else graph.entities[value].name
    return RouteClue(witness.clue.labels, named)

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

    thing = "thing" if target.kind == _UNTYPED else target.kind
    *most, last = [_clause(question.target, witness, graph, rng) for witness in question.witnesses]
    prompt = f"Which {thing} has these facts: {'; '.join(most)}; and {last}?"

    clues: list[RouteClue] = []
    for witness in question.witnesses:
        value = witness.clue.value
        named = value if isinstance(value, Span) else graph.entities[value].name
        clues.append(RouteClue(witness.clue.labels, named))
    task = search_task(prompt, (target.name,), text, metadata)
    return RoutedTask(task, ClueRoute(tuple(clues)))


def _clause(target: str, witness: Witness, graph: KnowledgeGraph, rng: random.Random) -> str:
    """One clue as a sentence about "it"."""
    phrase = "it"
    for subject, label in zip((target, *witness.reached), witness.clue.labels, strict=False):
        # a phrasing of the relation around it, preferably one that ends with it
        named = (graph.entities[subject].kind, label)
        relations = graph.relations.values()
        relation = next(one for one in relations if (one.subject_kind, one.label) == named)
        nesting = [said for said in relation.phrasings if said.endswith("{x}")]
        phrase = rng.choice(nesting or relation.phrasings).replace("{x}", phrase)

    value = witness.clue.value
    if isinstance(value, str):
        return f"{phrase} is {graph.entities[value].name}"
    if value.is_decade:
        return f"{phrase} lies in the {value.low:.0f}s"
    return f"{phrase} is {_number(value.low)} or more and less than {_number(value.high)}"


def _number(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else f"{number:.10g}"

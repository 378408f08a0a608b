"""Tasks from fair queries and from a user's own questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from espalier.knowledge.views import View
from espalier.records import Message, Task, TaskMetadata, Verifier, task_id_of
from espalier.synthesis.own_questions import OwnQuestion
from espalier.synthesis.phrasing import question_text
from espalier.synthesis.routes import Route, route_of
from espalier.synthesis.webshaper.candidate import Candidate
from espalier.synthesis.webshaper.query import (
    ConstantSet,
    Intersection,
    Query,
    Union,
    canonical,
    hops,
    nodes,
    signature,
)
from espalier.synthesis.webshaper.steps import TaskSplit as Split

SPLITS: tuple[Split, ...] = ("train", "dev", "heldout")
INDEX_OF_SPLIT: Mapping[Split, View] = {"train": "train", "dev": "dev", "heldout": "full"}
"""The view that a split's tasks search."""
OWN = "own"
"""Kind and source of a user's own questions."""
DRAWN = "webshaper"
"""Source of questions that are drawn by signature."""
GROWN = "expansion"
"""Source of questions that are grown layer by layer."""


@dataclass(frozen=True, slots=True)
class Question:
    """A task, and the route that a teacher can walk; none for a user's own question."""

    task: Task
    route: Route | None


def formal_question(candidate: Candidate, split: Split, seed: int, source: str = DRAWN) -> Question:
    """The task that asks for a fair query."""
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
    return Question(_task(prompt, (answer.name,), text, metadata), route_of(query, graph))


def own_question(own: OwnQuestion) -> Question:
    """The task of a user's own question."""
    text = f"{own.question}\t{own.document_id}"
    metadata = TaskMetadata(
        split=own.split,
        source=OWN,
        difficulty=1,
        extra={
            "kind": OWN,
            "hops": 1,
            "evidence": [own.document_id] if own.document_id else [],
        },
    )
    return Question(_task(own.question, own.answers, text, metadata), None)


def kind_of(query: Query) -> str:
    """`union` where one stands anywhere in the query, else `intersection`, else `chain`."""
    found = list(nodes(query))
    if any(isinstance(node, Union | ConstantSet) for node in found):
        return "union"
    return "intersection" if any(isinstance(node, Intersection) for node in found) else "chain"


def _task(prompt: str, gold: tuple[str, ...], text: str, metadata: TaskMetadata) -> Task:
    return Task(
        task_id=task_id_of(metadata.split, text),
        prompt=(Message(role="user", content=prompt),),
        environment="search_qa",
        arguments={"index": INDEX_OF_SPLIT[metadata.split]},
        verifier=Verifier(gold=gold),
        metadata=metadata,
    )


def evidence_of(task: Task) -> tuple[str, ...]:
    """Ids of the documents that a solver needs, in their order."""
    found = task.extra.get("evidence")
    return tuple(map(str, found)) if isinstance(found, list) else ()

"""Counts of a user's own rows that became questions, and of the others by reason.

Every question pair and every triple of the source is counted once: as used, or under the first
reason against it.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from espalier.config import SplitsConfig
from espalier.environments.funnel import Funnel
from espalier.records import SPLITS, Split, read_manifest
from espalier.records.knowledge import Entity, KnowledgeGraph, Triple
from espalier_search.synthesis.webshaper.candidate import CandidateQuestion, World
from espalier_search.synthesis.webshaper.query import Constant, Projection
from espalier_search.synthesis.webshaper.rules import broken_rule
from espalier_search.synthesis.webshaper.steps import MAX_LISTED

QUESTIONS = "source.questions"
TRIPLES = "source.triples"
SENTENCES = "source.sentences"
"""Headings of the funnel."""
_LEFT_OUT_ROWS = {
    QUESTIONS: {"questions_repeated": "repeated", "questions_contradicted": "second_answer"},
    SENTENCES: {"sentences_not_asked_about": "not_asked_about"},
    TRIPLES: {"triples_repeated": "repeated"},
}
"""Heading -> row count of the knowledge's manifest -> reason."""
_MAX_JUDGED = 20_000
"""Limit of triples without a question that are judged by every rule. Most triples of a large source
are simply not drawn, and judging them all would take longer than drawing."""
_ASKED, _NOT_DRAWN, _LEFT_OUT = "asked_about", "not_drawn", "left_out"
_LINE_ALONE = "in_an_added_line_alone"
_WARNED_SHARE = 0.5
"""Share of a relation's triples that are left out, from which on the log warns of it."""
_WARNED_RELATIONS = 5
_SHOWN_REASONS = 2
_LEAST_QUESTIONS = 3
"""Expected questions per split from which on a source counts as large enough."""


def count_source_rows(knowledge: Path, funnel: Funnel) -> None:
    """Count the rows that `ingest` left out, and the question pairs that it kept."""
    rows = read_manifest(knowledge).rows
    for heading, reasons in _LEFT_OUT_ROWS.items():
        for name, reason in reasons.items():
            if number := rows.get(name, 0):
                funnel.count(heading, reason, number)
    path = knowledge / "questions_dropped.json"
    if path.is_file():
        dropped = json.loads(path.read_bytes())
        for reason, number in dropped.get("reasons", {}).items():
            funnel.count(QUESTIONS, reason, number)
    if number := rows.get("questions", 0):
        funnel.count(QUESTIONS, "answer_found", number)


def count_triples(
    graph: KnowledgeGraph, worlds: Mapping[Split, World], asked: Iterable[Triple], funnel: Funnel
) -> None:
    """Count every triple of the graph: asked about, or the first reason against it.

    What is left out is counted for each relation too, and the largest of such gaps are remarked.
    """
    used, judged = set(asked), 0
    by_relation: dict[str, Counter[str]] = defaultdict(Counter)
    for triple in graph.triples():
        reason = _ASKED if triple in used else _reason_against(triple, graph)
        split = _split_of(graph.entities[triple.subject], graph.entities[triple.object])
        if reason is None and split is not None and judged < _MAX_JUDGED:
            judged += 1
            question = Projection(triple.relation, Constant(triple.subject))
            reason = broken_rule(CandidateQuestion(question, worlds[split]))
        funnel.count(TRIPLES, reason or _NOT_DRAWN)
        by_relation[triple.relation][reason or _NOT_DRAWN] += 1
    _count_coverage(by_relation, funnel)


def _count_coverage(by_relation: Mapping[str, Counter[str]], funnel: Funnel) -> None:
    gaps: list[tuple[int, str]] = []
    for relation, reasons in by_relation.items():
        left_out = reasons.total() - reasons[_ASKED] - reasons[_NOT_DRAWN]
        counts = {_ASKED: reasons[_ASKED], _NOT_DRAWN: reasons[_NOT_DRAWN], _LEFT_OUT: left_out}
        for column, number in counts.items():
            funnel.count(f"{column}.relations", relation, number)
        if left_out >= _WARNED_SHARE * reasons.total():
            gaps.append((left_out, relation))
    for left_out, relation in sorted(gaps, key=lambda gap: -gap[0])[:_WARNED_RELATIONS]:
        reasons = by_relation[relation].copy()
        total = reasons.total()
        del reasons[_ASKED], reasons[_NOT_DRAWN]
        why = ", ".join(f"{number} {why}" for why, number in reasons.most_common(_SHOWN_REASONS))
        funnel.remark(
            f"warning: no question asks for {left_out} of {total} triples of {relation} "
            f"({left_out / total:.0%}): {why}"
        )
    if (others := len(gaps) - _WARNED_RELATIONS) > 0:
        funnel.remark(f"warning: nor for half of the triples of {others} other relations")


def count_where_answers_stand(
    candidates: Iterable[CandidateQuestion], split: Split, funnel: Funnel
) -> None:
    """Count the questions by what states their answer.

    With `knowledge.triple_lines`, `ingest` writes a line for each triple into the document of its
    subject. A solver may look the answer up there, whether or not a sentence names it too.
    """
    counts = Counter(map(_where_the_answer_stands, candidates))
    for where, number in counts.items():
        funnel.count(f"{split}.answers_of_triples", where, number)
    if number := counts[_LINE_ALONE]:
        funnel.remark(
            f"{split}: {number} of {counts.total()} questions made from triples have an answer "
            "that no sentence of its document names: it is read in the line that ingest adds to "
            "the document for its triple"
        )


def _where_the_answer_stands(candidate: CandidateQuestion) -> str:
    statements = candidate.world.statements
    last = [read for read in candidate.trace.last_reads if candidate.answer in read.objects]
    if any(statements.is_prose(read.subject) for read in last):
        return "in_a_sentence"
    found = {
        statements.is_object_named(Triple(read.subject, read.relation, candidate.answer))
        for read in last
    }
    if True in found:
        return "in_a_sentence_too"
    return _LINE_ALONE if False in found else "in_a_document_of_triples"


def triples_read(candidates: Iterable[CandidateQuestion]) -> set[Triple]:
    """The triples that a solver of these questions has to read."""
    return {
        Triple(read.subject, read.relation, each)
        for candidate in candidates
        for read in candidate.trace.reads
        for each in read.objects
    }


def _reason_against(triple: Triple, graph: KnowledgeGraph) -> str | None:
    """The reason why no question of one step can ask for a triple; None if the rules decide."""
    subject, reached = graph.entities[triple.subject], graph.entities[triple.object]
    num_objects = len(graph.objects(triple.relation, triple.subject))
    split = _split_of(subject, reached)
    if not subject.askable:
        return "subject_not_askable"
    if not subject.document_id:
        return "subject_without_document"
    if not reached.askable:
        return "object_not_askable"
    if num_objects > MAX_LISTED:
        return "list_too_long"
    if num_objects > 1:
        return "one_of_several_objects"
    if split is None:
        return "hubs_only"
    if not {subject.split, reached.split} <= {split, "hub"}:
        return "object_of_another_split"
    return None


def _split_of(subject: Entity, reached: Entity) -> Split | None:
    """The split whose questions may be about both entities; None for two hubs."""
    return next((one for one in SPLITS if one in (subject.split, reached.split)), None)


def least_subjects(graph: KnowledgeGraph, splits: SplitsConfig) -> int:
    """Number of entities with a document and triples that a source like this one needs.

    With so many, the smaller of dev and heldout has three questions of one step on average. A split
    has a share of the entities, and a triple gives it a question if the object is of the same split
    or of none: always for an object that is no subject, else with a probability equal to the share.
    """
    subjects = {triple.subject for triple in graph.triples()}
    share = min(splits.dev_share, splits.heldout_share)
    usable = sum(
        share if triple.object in subjects else 1.0
        for triple in graph.triples()
        if len(graph.objects(triple.relation, triple.subject)) == 1
    )
    per_subject = usable / len(subjects) if subjects else 0.0
    least = math.ceil(_LEAST_QUESTIONS / share)  # if every subject gives one question
    return max(least, math.ceil(least / per_subject)) if per_subject else least


def least_documents(splits: SplitsConfig) -> int:
    """Number of documents with an answer that gives every split a question of its own."""
    return math.ceil(1.2 / min(splits.dev_share, splits.heldout_share))

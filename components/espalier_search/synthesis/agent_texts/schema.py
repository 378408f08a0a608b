"""Knowledge of the embedded teacher, and its reading of questions and judging of plans.

It knows names, kinds, labels of lines and the phrasings of relations, but not the answers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from espalier.records.folding import EMPTY_WORDS, folded_name, words
from espalier.records.knowledge import Document, EntitySplit, KnowledgeGraph, Relation
from espalier_search.synthesis.agent_texts.calls import Judgement, PlanInput
from espalier_search.synthesis.search_wording import LABEL_SEPARATOR, listed_values
from espalier_search.synthesis.task_making import FRAMES, JOINED_FRAMES
from espalier_search.synthesis.webshaper.candidate import StatedTriples

VISIBLE: frozenset[EntitySplit] = frozenset({"train", "hub"})
"""Splits whose names may occur in texts for training."""

Facts = Mapping[str, Sequence[str]]
"""Label of a line -> its values."""


class Schema:
    """Relations, and the names, kinds and facts of the documents that training may read."""

    def __init__(
        self,
        graph: KnowledgeGraph,
        documents: Iterable[Document],
        statements: StatedTriples | None = None,
    ) -> None:
        self._statements = statements
        self.relations = tuple(graph.relations.values())
        self._by_label = {(r.subject_kind, r.label): r for r in self.relations}
        self._kinds: dict[str, set[str]] = defaultdict(set)
        self._facts: dict[tuple[str, str], Facts] = {}
        self._names: list[str] = []
        kind_of_document: dict[str, str] = {}
        for entity in graph.entities.values():
            if entity.split in VISIBLE:
                self._kinds[folded_name(entity.name)].add(entity.kind)
            if entity.document_id:
                kind_of_document[entity.document_id] = entity.kind
        labels: dict[str, None] = {}
        for document in documents:
            facts = self.facts_in(document.title, document.lines)
            labels.update(dict.fromkeys(facts))
            kind = kind_of_document.get(document.document_id, "")
            self._facts.setdefault((folded_name(document.title), kind), facts)
            self._kinds[folded_name(document.title)].add(kind)
            self._names.append(document.title)
        related = {relation.label for relation in self.relations}
        self.plain_labels = tuple(label for label in labels if label not in related)
        """Labels of lines that lead to no other document, such as population."""
        self.labels = tuple(dict.fromkeys((*sorted(related), *self.plain_labels)))

    @property
    def names(self) -> Sequence[str]:
        """Titles of all documents."""
        return self._names

    def kinds(self, name: str) -> frozenset[str]:
        """Kinds of all entities of that name; empty for an unknown name."""
        return frozenset(self._kinds.get(folded_name(name), ()))

    def relation(self, kind: str, label: str) -> Relation | None:
        """The relation that a line `label` states in a document about `kind`."""
        return self._by_label.get((kind, label))

    def facts(self, name: str, kind: str) -> Facts:
        """The facts in the document of that name and kind; empty if there is none."""
        return self._facts.get((folded_name(name), kind), {})

    def facts_in(self, title: str, lines: Iterable[str]) -> Facts:
        """What `lines` of the document of that title say."""
        return facts_in(title, lines, self._statements)

    def shown(self, observation: str, title: str, label: str) -> Sequence[str] | None:
        """See `StatedTriples.shown`."""
        read = self._statements.shown if self._statements else listed_values
        return read(observation, title, label)


def facts_in(title: str, lines: Iterable[str], statements: StatedTriples | None) -> Facts:
    """The "label: value" lines of a document, and in prose what its sentences state."""
    lines = tuple(lines)
    stated = statements.facts(title, lines) if statements else {}
    return {**facts_of(lines), **stated}


def facts_of(lines: Iterable[str]) -> Facts:
    """The lines that read "label: value; value"."""
    split = (line.partition(": ") for line in lines)
    return {label: values.split("; ") for label, _, values in split if label and values}


_MAX_DEPTH = 6
_BOTH, _AND = "both ", " and "


@dataclass(frozen=True, slots=True)
class QuestionReading:
    """A question read as a chain: from `name` along `labels` to an entity of one of `kinds`."""

    name: str
    labels: tuple[str, ...]
    kinds: frozenset[str]


class QuestionReader:
    """A parser that undoes the wording of chains, phrase by phrase, down to a name.

    A reading follows from the question's words and the schema alone; nothing is guessed.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._phrasings = [
            (*phrasing.split("{x}", 1), relation)
            for relation in schema.relations
            for phrasing in relation.phrasings
        ]

    def read(self, question: str) -> QuestionReading | None:
        """The first reading that fits names and kinds; None if there is none."""
        for frame in _FRAME_PATTERNS:
            found = frame.fullmatch(question.strip())
            if found is None:
                continue
            reading = self._read(found["np"], 0)
            if reading is not None:
                return reading
        return None

    def _read(self, phrase: str, depth: int) -> QuestionReading | None:
        if kinds := self._schema.kinds(phrase):
            return QuestionReading(phrase, (), kinds)
        if depth == _MAX_DEPTH:
            return None
        for reading in self._readings(phrase, depth):
            return reading
        return None

    def _readings(self, phrase: str, depth: int) -> Iterator[QuestionReading]:
        for before, after, relation in self._phrasings:
            inner = self._inside(phrase, before, after, depth)
            if inner and relation.subject_kind in inner.kinds:
                kinds = frozenset({relation.object_kind})
                yield QuestionReading(inner.name, (*inner.labels, relation.label), kinds)
        for label in self._schema.plain_labels:
            if inner := self._inside(phrase, f"the {label} of ", "", depth):
                yield QuestionReading(inner.name, (*inner.labels, label), frozenset())
        if phrase.startswith(_BOTH):
            # the labels of A, then those of B
            joined = phrase.removeprefix(_BOTH)
            for place in re.finditer(_AND, joined):
                first = self._read(joined[: place.start()], depth + 1)
                second = self._read(joined[place.end() :], depth + 1)
                if first and second and first.labels and second.labels:
                    labels = first.labels + second.labels
                    yield QuestionReading(first.name, labels, first.kinds & second.kinds)

    def _inside(self, phrase: str, before: str, after: str, depth: int) -> QuestionReading | None:
        if not (phrase.startswith(before) and phrase.endswith(after)):
            return None
        inner = phrase[len(before) : len(phrase) - len(after)]
        return self._read(inner, depth + 1) if inner.strip() else None


def _pattern(frame: str) -> re.Pattern[str]:
    text = re.escape(frame).replace(r"\{kind\}", r"[\w ]+?").replace(r"\{np\}", r"(?P<np>.+)")
    return re.compile(text, re.DOTALL)


_FRAME_PATTERNS = tuple(_pattern(frame) for frame in (*JOINED_FRAMES, *FRAMES))


_FRAME_WORDS = EMPTY_WORDS | {
    *("what", "which", "name", "tell", "me", "find", "both", "and", "also", "or", "one"),
    *("to", "for", "with", "its", "by", "as", "from", "where"),
}


class PlanJudge:
    """Judges plans by comparing words of the question with words of the plan.

    It knows names, labels and kinds, and the words with which questions express a relation. It does
    not parse the question, executes nothing and does not know the answer. So it is sometimes wrong:
    it cannot tell one hop from two equal ones, nor the order of two hops that fit both ways.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._words: dict[str, set[str]] = defaultdict(set)
        """Label -> words that questions use for it."""
        for relation in schema.relations:
            text = " ".join((relation.label, *relation.phrasings)).replace("{x}", " ")
            self._words[relation.label] |= set(words(text)) - _FRAME_WORDS
        for label in schema.plain_labels:
            self._words[label] |= set(words(label))
        self._labels = {folded_name(label): label for label in schema.labels}

    def judge(self, told: PlanInput) -> Judgement:
        """Whether the plan is likely to obtain the knowledge that the question needs."""
        fault = self._fault(told)
        return Judgement(likely=not fault, reason=fault or "the plan says what the question asks")

    def _fault(self, told: PlanInput) -> str:
        plan = told.plan
        if plan.tool not in {tool.name for tool in told.tools}:
            return "no such tool is offered"
        steps = [folded_name(step) for step in plan.analysis.split(LABEL_SEPARATOR.strip())]
        labels = [self._labels[step] for step in steps if step in self._labels]
        if not labels or len(labels) < len(steps):
            return "the analysis names no lines of documents"
        query, ending = folded_name(plan.query), f" {steps[0]}"
        if not query.endswith(ending):
            return "the search is not for the first line of the analysis"
        name = query.removesuffix(ending)
        if f" {name} " not in f" {folded_name(told.question)} ":
            return "the question does not name what is searched for"
        return self._chain_fault(name, labels) or self._word_fault(told.question, name, labels)

    def _chain_fault(self, name: str, labels: list[str]) -> str:
        """The fault if documents of the kinds along the chain lack a line; "" if none does."""
        kinds = self._schema.kinds(name)
        if not kinds:
            return "nothing of that name is known"
        for label in labels:
            found = [self._schema.relation(kind, label) for kind in sorted(kinds)]
            reached = {relation.object_kind for relation in found if relation}
            if not reached and label not in self._schema.plain_labels:
                return "a line is looked for where no document has it"
            kinds = frozenset(reached) or kinds
        return ""

    def _word_fault(self, question: str, name: str, labels: list[str]) -> str:
        """The fault if the question's words fit other lines than the plan's; "" if they do not."""
        asked = set(words(question)) - set(words(name)) - _FRAME_WORDS
        if any(not (asked & self._words[label]) for label in labels):
            return "the question does not speak of a line in the analysis"
        explained = set().union(*(self._words[label] for label in labels))
        known = set().union(*self._words.values())
        if missing := sorted((asked & known) - explained):
            return f"the analysis leaves out {' '.join(missing[:3])}"
        return ""

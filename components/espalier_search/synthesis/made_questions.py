"""Further training questions, made from documents in the wording of a user's own pairs.

A document and a pair show how a fact is stated and how it is asked for: "Ada was born in London."
and "Where was Ada born?". With slots for the document's title and the answer, they give a sentence
shape and a question shape that belong together (patterns from known pairs: "Extracting patterns and
relations from the World Wide Web", WebDB 1998). Two shapes count as connected if two documents or
more connect them, because one sentence may name an answer by chance. Every document with a sentence
of a connected shape then gets a question of every question shape: a new wording for a fact that a
pair asks for already, or a question about another fact.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from espalier.records.folding import SpelledNames, folded_name
from espalier.records.knowledge import Document
from espalier_search.knowledge.cloze import sentence_about
from espalier_search.synthesis.own_questions import OwnQuestion

_NAME, _ANSWER = "\x01", "\x02"
"""Slots of a shape; texts contain no control characters, because lines are split at white space."""
_LEAST_DOCUMENTS = 2
"""Number of documents that must connect a sentence shape with a question shape."""
_MAX_ANSWER_WORDS = 4
MAX_DOCUMENTS = 2000
"""Documents to ask about, at most; of more a random sample, as every shape is tried on each."""


class _Link(NamedTuple):
    sentence: str
    question: str


def made_questions(
    own: Sequence[OwnQuestion], documents: Sequence[Document], taken: frozenset[str]
) -> list[OwnQuestion]:
    """New questions about `documents`, in the wording of the pairs `own`.

    Args:
        own: training pairs, with the documents that answer them.
        documents: the documents that training may read.
        taken: folded questions of all splits, none of which is made again.
    """
    by_id = {document.document_id: document for document in documents}
    bearers = Counter(folded_name(document.title) for document in documents)
    if len(documents) > MAX_DOCUMENTS:
        documents = random.Random("made questions").sample(documents, MAX_DOCUMENTS)
    shapes = _connected(own, by_id)
    asked = set(taken)
    found: list[OwnQuestion] = []
    for document in documents:
        folded = folded_name(document.title)
        if not folded or {_NAME, _ANSWER} & set(document.title):
            continue
        if bearers[folded] > 1:  # a question would have two answers
            continue
        sentences = _sentences(document)
        for said, questions in shapes:
            for answer in _only_answer(said, sentences, document.title):
                for question in questions:
                    text = question.replace(_NAME, document.title)
                    if folded_name(text) not in asked:
                        asked.add(folded_name(text))
                        found.append(OwnQuestion(text, (answer,), document.document_id, "train"))
    return found


def _connected(
    own: Sequence[OwnQuestion], by_id: dict[str, Document]
) -> list[tuple[list[str], list[str]]]:
    """Groups of sentence shapes and the question shapes that ask for the facts they state."""
    documents_of: dict[_Link, set[str]] = defaultdict(set)
    for question in own:
        document = by_id.get(question.document_id)
        if document and (link := _link(question, document)):
            documents_of[link].add(document.document_id)
    groups: list[tuple[set[str], set[str]]] = []
    for link, seen in documents_of.items():
        if len(seen) < _LEAST_DOCUMENTS:
            continue
        said, asked = {link.sentence}, {link.question}
        for group in [one for one in groups if one[0] & said or one[1] & asked]:
            groups.remove(group)
            said |= group[0]
            asked |= group[1]
        groups.append((said, asked))
    return [(sorted(said), sorted(asked)) for said, asked in groups]


def _link(question: OwnQuestion, document: Document) -> _Link | None:
    """The shapes of a pair; None unless the answer occurs exactly once, in one sentence."""
    asked = _slotted(question.question, document.title, _NAME)
    if asked is None:
        return None
    for answer in question.answers:
        shapes = [
            shape
            for line in _sentences(document)
            if (open_line := _slotted(line, answer, _ANSWER))
            and (shape := _slotted(open_line, document.title, _NAME))
        ]
        if len(shapes) == 1 and _count(answer, " ".join(document.lines)) == 1:
            return _Link(shapes[0], asked)
    return None


def _sentences(document: Document) -> list[str]:
    """The sentences about the document's subject, with its name in each."""
    found = (sentence_about(line, document.title) for line in document.lines)
    return [line for line in found if line]


def _slotted(text: str, name: str, slot: str) -> str | None:
    """`text` with a slot for `name`; None unless `name` occurs exactly once.

    The first letter becomes a capital, so that capitalization makes no other shape.
    """
    if _count(name, text) != 1:
        return None
    replaced = SpelledNames([name], ignores_case=True).replaced(text, lambda _: slot)
    return replaced[:1].upper() + replaced[1:]


def _count(name: str, text: str) -> int:
    return sum(1 for _ in SpelledNames([name], ignores_case=True).found_in(text))


def _only_answer(said: Sequence[str], sentences: Sequence[str], title: str) -> Iterator[str]:
    """The answer that the sentences give in one of the shapes; none if it is not unique."""
    found: Counter[str] = Counter()
    for shape in said:
        # compiling a pattern for every document would take most of the time
        literal = max(re.split(f"[{_NAME}{_ANSWER}]", shape), key=len).lower()
        if likely := [line for line in sentences if literal in line.lower()]:
            pattern = re.escape(shape).replace(_NAME, re.escape(title)).replace(_ANSWER, "(.+)")
            # a sentence starts with a capital, even if the title does not
            whole = re.compile(pattern, re.IGNORECASE)
            found.update(match[1] for line in likely if (match := whole.fullmatch(line)))
    if len(found) == 1 and found.total() == 1:
        (answer,) = found
        if len(answer.split()) <= _MAX_ANSWER_WORDS and _count(title, answer) == 0:
            yield answer

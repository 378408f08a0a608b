"""Further training questions, made from documents by the wording of a user's own pairs.

A pair shows how a fact is said and how it is asked for: "Ada was born in London." and "Where was
Ada born?". With the document's title and the answer taken out, sentences of one shape and questions
of one shape belong together (patterns from known pairs: "Extracting patterns and relations
from the World Wide Web", WebDB 1998). Two shapes are connected by two documents or more, so that a
sentence that names an answer by chance connects nothing. Every question shape is then asked of
every document with a sentence of a connected shape: in other words about a fact that was asked for,
or about one that was not.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from espalier.records.folding import folded_name
from espalier.records.knowledge import Document
from espalier_search.knowledge.cloze import sentence_about
from espalier_search.synthesis.own_questions import OwnQuestion

_NAME, _ANSWER = "\x01", "\x02"
"""Slots of a shape; no text of a user holds control characters, as lines are split at space."""
_LEAST_DOCUMENTS = 2
"""Documents that must connect a sentence's shape with a question's."""
_MAX_ANSWER_WORDS = 4
MAX_DOCUMENTS = 2000
"""So many, drawn at random, are asked about: each shape is looked for in each."""


class _Link(NamedTuple):
    said: str
    asked: str


def made_questions(
    own: Sequence[OwnQuestion], documents: Sequence[Document], taken: frozenset[str]
) -> list[OwnQuestion]:
    """New questions about `documents`, in the wording of the pairs `own`.

    Args:
        own: training pairs, with the documents that answer them.
        documents: that training may read.
        taken: folded questions that are asked already, of any split.
    """
    by_id = {document.document_id: document for document in documents}
    bearers = Counter(folded_name(document.title) for document in documents)
    if len(documents) > MAX_DOCUMENTS:
        documents = random.Random("made questions").sample(documents, MAX_DOCUMENTS)
    shapes = _connected(own, by_id)
    asked = set(taken)
    found: list[OwnQuestion] = []
    for document in documents:
        # a question that names one of two documents of a title has two answers
        if not _is_readable(document.title) or bearers[folded_name(document.title)] > 1:
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
    """Groups of sentence shapes and the question shapes that ask for what they say."""
    documents_of: dict[_Link, set[str]] = defaultdict(set)
    for question in own:
        document = by_id.get(question.document_id)
        if document and (link := _link(question, document)):
            documents_of[link].add(document.document_id)
    groups: list[tuple[set[str], set[str]]] = []
    for link, seen in documents_of.items():
        if len(seen) < _LEAST_DOCUMENTS:
            continue
        said, asked = {link.said}, {link.asked}
        for group in [one for one in groups if one[0] & said or one[1] & asked]:
            groups.remove(group)
            said |= group[0]
            asked |= group[1]
        groups.append((said, asked))
    return [(sorted(said), sorted(asked)) for said, asked in groups]


def _link(question: OwnQuestion, document: Document) -> _Link | None:
    """The shapes of a pair; None unless one sentence alone names its answer, and once."""
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
    """The sentences that are about the document's subject, named in each."""
    found = (sentence_about(line, document.title) for line in document.lines)
    return [line for line in found if line]


def _slotted(text: str, name: str, slot: str) -> str | None:
    """`text` with the one occurrence of `name` as a slot; None where it is not said just once.

    A capital at the beginning of the sentence makes no other shape.
    """
    if _count(name, text) != 1:
        return None
    replaced = re.sub(_whole(name), slot, text, flags=re.IGNORECASE)
    return replaced[:1].upper() + replaced[1:]


def _count(name: str, text: str) -> int:
    return len(re.findall(_whole(name), text, flags=re.IGNORECASE))


def _whole(name: str) -> str:
    return rf"(?<!\w){re.escape(name)}(?!\w)"


def _is_readable(title: str) -> bool:
    return bool(folded_name(title)) and not {_NAME, _ANSWER} & set(title)


def _only_answer(said: Sequence[str], sentences: Sequence[str], title: str) -> Iterator[str]:
    """What the sentences say by one of the shapes, if they say one thing only, and once."""
    found: Counter[str] = Counter()
    for shape in said:
        # to compile a pattern for every document would take most of the time
        literal = max(re.split(f"[{_NAME}{_ANSWER}]", shape), key=len).lower()
        if likely := [line for line in sentences if literal in line.lower()]:
            pattern = re.escape(shape).replace(_NAME, re.escape(title)).replace(_ANSWER, "(.+)")
            # a capital opens the sentence, whatever the spelling of the title
            whole = re.compile(pattern, re.IGNORECASE)
            found.update(match[1] for line in likely if (match := whole.fullmatch(line)))
    if len(found) == 1 and found.total() == 1:
        (answer,) = found
        if len(answer.split()) <= _MAX_ANSWER_WORDS and _count(title, answer) == 0:
            yield answer

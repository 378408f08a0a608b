"""Cloze logs: browsing logs over documents of plain sentences, which state no labelled facts.

A log takes a span of words out of a line, searches for what is left of the line, and states the
span that the found document shows. Most spans are replaced by invented names, in the document too,
so that the span has to be read.

    <|user|> the mayor of lyon is <|assistant|> <think> find </think> <search> mayor lyon </search>
    <information> lyon | the mayor of lyon is bakomi </information>
    <think> answer </think> <answer> bakomi </answer>
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from espalier.environments.reading import Log
from espalier.environments.search_qa.browsing import ShowsDocuments, invented_name
from espalier.knowledge.folding import content_words
from espalier.knowledge.graph import Document
from espalier.records import FinalAnswer, KnowledgeError
from espalier.synthesis.search_wording import LOOK_UP, READY_TO_ANSWER, search_call

_MAX_SPAN_WORDS = 2
_MIN_LINE_WORDS = 4
_MAX_QUERY_WORDS = 8


class ClozeWriter:
    """Writes cloze logs over the longer lines of `documents`."""

    def __init__(
        self, documents: Sequence[Document], search: ShowsDocuments, *, substitution_share: float
    ) -> None:
        self._lines = [
            (document, number)
            for document in documents
            for number, line in enumerate(document.lines)
            if len(line.split()) >= _MIN_LINE_WORDS
        ]
        if not self._lines:
            raise KnowledgeError(
                f"none of the {len(documents)} documents that training may read has a line of "
                f"{_MIN_LINE_WORDS} words: there is nothing to learn reading from. Add documents, "
                "or set policy.model to a model that can read."
            )
        self._search = search
        self._documents = documents
        self._substitution_share = substitution_share
        self._names = [document.title for document in documents]

    def write(self, rng: random.Random) -> Log:
        """One log; a function of the generator's state alone."""
        document, number = rng.choice(self._lines)
        line = document.lines[number].rstrip(".!?").split()
        length = rng.randint(1, _MAX_SPAN_WORDS)
        start = rng.randrange(len(line) - length + 1)
        span = " ".join(line[start : start + length])
        if rng.random() < self._substitution_share:
            span = invented_name(self._names, rng)
        rest = " ".join((*line[:start], *line[start + length :]))
        lines = list(document.lines)
        lines[number] = " ".join((*line[:start], span, *line[start + length :]))
        shown = Document(document.document_id, document.title, tuple(lines), document.split)
        query = " ".join(content_words(rest)[:_MAX_QUERY_WORDS])
        return Log(
            rest,
            (
                search_call(LOOK_UP, query),
                self._search.show(shown, query),
                FinalAnswer(span, READY_TO_ANSWER),
            ),
        )

    def texts(self, rng: random.Random) -> Iterator[str]:
        """See `ReadingMaterial`: titles and lines of the documents."""
        del rng
        for document in self._documents:
            yield document.title
            yield from document.lines

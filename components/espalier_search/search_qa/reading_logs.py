"""Question-free logs over train documents, from which the tiny policy learns to read.

Most names in a log are replaced by invented ones, so that the policy learns to copy a name rather
than to remember it: a country of the held-out split must be as readable as one it has seen. This is
a small agentic continual pre-training (Su et al. 2025, arXiv:2509.13310): no log asks a question.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from espalier.environments.reading import Log
from espalier.records import FinalAnswer, KnowledgeError, ToolCalls
from espalier.records.folding import SpelledNames, content_words, phrases
from espalier.records.knowledge import Document
from espalier_search.search_qa.invented_names import InventedNames
from espalier_search.synthesis.search_wording import (
    LOOK_UP,
    READY_TO_ANSWER,
    joint_label,
    joint_query,
    remaining_hops,
    search_call,
    search_query,
)

_HOP_WEIGHTS = (0.3, 0.3, 0.25, 0.15)
"""Shares of logs with 1 to 4 searches."""

_MAX_NOISE_LABELS = 5
_LED_TO_SHARE = 0.4
"""Share of the names of a joint search that an earlier search finds."""
_FRUITLESS_SHARE = 0.3
"""Share of joint searches that follow a joint search for another name, which finds no common
document."""
_TAILS = (0, 1, 1, 2)
"""Numbers of searches after a joint one, drawn uniformly."""


ShowDocument = Callable[[Document, str], str]
"""Maps a document and a query to the observation of a search that finds the document."""


StatedFacts = Callable[[str, Sequence[str]], Mapping[str, Sequence[str]]]
"""Maps title and lines of a document of prose to label -> values, as `StatedTriples.facts` does."""

_Facts = Sequence[tuple[str, Sequence[str]]]
"""Label and values of each fact of a document."""


class _Search(NamedTuple):
    """One search of a log, and the name that it finds."""

    label: str
    query: str
    observation: str
    found: str
    is_fruitless: bool = False


class BrowsingWriter:
    """Writes browsing logs over `documents` that state facts, grouped by kind of entity.

    A log names an entity among unrelated words, plans which lines to read, searches for one after
    the other, carries each value into the next search, and ends by stating the last value:

        <|user|> capital of lyon time zone <|assistant|> <think> country , currency </think>
        <search> lyon country </search> <information> lyon | country: france </information>
        ... <answer> euro </answer>

    Some logs name two entities, and search for the document that mentions both:

        <|user|> lyon capital nice <|assistant|> <think> both neighbours , mayor </think>
        <search> lyon nice neighbours </search> <information> bakomi | neighbours: nice; lyon ...

    The words around a name are random labels: a policy that has only read logs cannot answer a
    question, but it has learned to find a name in a sentence.

    A fact is a line "label: value; value". In a user's prose, the facts are those that `stated`
    finds in sentences, where names are replaced as well.
    """

    def __init__(  # noqa: PLR0913 (what logs are written from)
        self,
        documents: Sequence[Document],
        kinds: Mapping[str, str],
        object_kinds: Mapping[str, str],
        show: ShowDocument,
        *,
        substitution_share: float,
        join_share: float = 0.0,
        stated: StatedFacts = lambda title, lines: {},
    ) -> None:
        self._stated = stated
        self._show = show
        self._kinds = kinds
        self._by_kind: dict[str, list[Document]] = defaultdict(list)
        self._join_share = join_share
        self._object_kinds = object_kinds
        self._labels = sorted(object_kinds)
        self._documents = documents
        for document in documents:
            if self._facts(document):
                self._by_kind[kinds.get(document.document_id, "")].append(document)
        self._substitution_share = substitution_share
        self._names = InventedNames([document.title for document in documents])
        self._listing = [
            document
            for document in documents
            if any(len(values) > 1 for _, values in self._facts(document))
        ]
        self._has_single = any(map(self._single_facts, documents))

    @property
    def is_empty(self) -> bool:
        """Whether no document states a fact, so that there is nothing to write."""
        return not self._by_kind

    def write(self, rng: random.Random) -> Log:
        """Return one log; depends on the state of `rng` only."""
        if self._listing and rng.random() < self._join_share:
            return self._joined(rng)
        hops = rng.choices(range(1, len(_HOP_WEIGHTS) + 1), _HOP_WEIGHTS)[0]
        kind = rng.choice(list(self._by_kind))
        start = self._renamed(rng.choice(self._by_kind[kind]).title, rng)
        walk = list(self._walk(start, kind, hops, rng))
        if not walk:  # under other names no search shows the facts of this prose
            document = rng.choice(self._by_kind[kind])
            start, walk = document.title, [self._search(document, self._facts(document), rng)]
        return Log(self._prompt((start,), rng), tuple(_pieces(walk)))

    def _walk(self, name: str, kind: str, hops: int, rng: random.Random) -> Iterator[_Search]:
        """Yield up to `hops` searches from `name`, each for what the one before it found."""
        for _ in range(hops):
            if kind not in self._by_kind:
                return
            own = rng.choice(self._by_kind[kind])
            document, facts = self._disguised(own, name, rng)
            if self._is_prose(own):
                facts = self._shown_facts(document, facts)
            if not facts:
                return
            search = self._search(document, facts, rng)
            yield search
            name, kind = search.found, self._object_kinds.get(search.label, "")

    def _search(self, document: Document, facts: _Facts, rng: random.Random) -> _Search:
        label, values = rng.choice(facts)
        query = search_query(document.title, label)
        # the first value of a list: the log gives no reason to choose another
        return _Search(label, query, self._show(document, query), values[0])

    def _shown_facts(self, document: Document, facts: _Facts) -> _Facts:
        """Return the facts of prose that a search for their label shows, spelled as they are."""
        return [
            (label, values)
            for label, values in facts
            if values[0] in self._show(document, search_query(document.title, label))
        ]

    def _is_prose(self, document: Document) -> bool:
        return bool(self._stated(document.title, document.lines))

    def _joined(self, rng: random.Random) -> Log:
        """Return a log that searches for the document that mentions two names, and goes on from it.

        Either name may be the result of an earlier search. A joint search with a wrong name may
        come first; it finds only that name's own document.
        """
        found = rng.choice(self._listing)
        title = self._renamed(found.title, rng)
        found, facts = self._disguised(found, title, rng)
        label, values = rng.choice([fact for fact in facts if len(fact[1]) > 1])
        first, second = rng.sample(values, 2)
        walk: list[_Search] = []
        starts: list[str] = []
        for name in (first, second):
            if rng.random() < _LED_TO_SHARE and self._has_single:
                start, search = self._leading_to(name, rng)
                starts.append(start)
                walk.append(search)
            else:
                starts.append(name)
        joint = joint_label((label,))
        if rng.random() < _FRUITLESS_SHARE:
            other = self._renamed(rng.choice(self._listing).title, rng)
            starts.insert(rng.randrange(2), other)
            own, _ = self._disguised(rng.choice(self._listing), other, rng)
            query = joint_query((other, second), (label,))
            walk.append(_Search(joint, query, self._show(own, query), "", is_fruitless=True))
        query = joint_query((first, second), (label,))
        walk.append(_Search(joint, query, self._show(found, query), title))
        kind = self._kinds.get(found.document_id, "")
        walk += self._walk(title, kind, rng.choice(_TAILS), rng)
        return Log(self._prompt(starts, rng), tuple(_pieces(walk)))

    def _leading_to(self, name: str, rng: random.Random) -> tuple[str, _Search]:
        """Return a start and a search from it that finds `name`; some line has a single value."""
        document = rng.choice(self._documents)
        while not (facts := self._single_facts(document)):
            document = rng.choice(self._documents)
        start = self._renamed(document.title, rng)
        label, _ = rng.choice(facts)
        lines = [
            f"{label}: {name}" if line.startswith(f"{label}: ") else line
            for line in self._disguised(document, start, rng)[0].lines
        ]
        shown = Document(document.document_id, start, tuple(lines), document.split)
        query = search_query(start, label)
        return start, _Search(label, query, self._show(shown, query), name)

    def texts(self, rng: random.Random) -> Iterator[str]:
        """Yield titles and lines of the documents."""
        del rng
        for document in self._documents:
            yield document.title
            yield from document.lines

    def _prompt(self, names: Sequence[str], rng: random.Random) -> str:
        """Return the names among a few labels unrelated to the walk."""
        words: list[str] = []
        for name in names:
            words += rng.choices(self._labels, k=rng.randrange(_MAX_NOISE_LABELS // len(names) + 1))
            words.append(name)
        return " ".join((*words, *rng.choices(self._labels, k=rng.randrange(2))))

    def _facts(self, document: Document) -> _Facts:
        """Return what the document states: in sentences of prose that are shown, else in lines."""
        if stated := self._stated(document.title, document.lines):
            return self._shown_facts(document, list(stated.items()))
        return self._listed(document)

    def _listed(self, document: Document) -> list[tuple[str, list[str]]]:
        """Return label and values of lines that state a relation, or of all lines if none does."""
        split = (line.partition(": ") for line in document.lines)
        facts = [(label, values.split("; ")) for label, _, values in split if values]
        return [fact for fact in facts if fact[0] in self._object_kinds] or facts

    def _single_facts(self, document: Document) -> list[tuple[str, list[str]]]:
        """Return the lines with one value; none of prose."""
        if self._is_prose(document):
            return []
        return [fact for fact in self._listed(document) if len(fact[1]) == 1]

    def _disguised(
        self, document: Document, title: str, rng: random.Random
    ) -> tuple[Document, _Facts]:
        """Return the document with another title and most values renamed, and what it states."""
        if stated := self._stated(document.title, document.lines):
            return self._disguised_prose(document, stated, title, rng)
        lines: list[str] = []
        for line in document.lines:
            label, separator, values = line.partition(": ")
            if separator:
                renamed = [self._renamed(value, rng) for value in values.split("; ")]
                line = f"{label}: {'; '.join(renamed)}"
            lines.append(line)
        shown = Document(document.document_id, title, tuple(lines), document.split)
        return shown, self._listed(shown)

    def _disguised_prose(
        self,
        document: Document,
        stated: Mapping[str, Sequence[str]],
        title: str,
        rng: random.Random,
    ) -> tuple[Document, _Facts]:
        others = {document.title: title}
        for value in chain.from_iterable(stated.values()):
            if value not in others:
                others[value] = self._renamed(value, rng)
        by_case = {name.casefold(): other for name, other in others.items()}
        spelled = SpelledNames(others, ignores_case=True)
        lines = [
            spelled.replaced(line, lambda name: by_case.get(name.casefold(), name))
            for line in document.lines
        ]
        shown = Document(document.document_id, title, tuple(lines), document.split)
        return shown, [(label, [others[value] for value in stated[label]]) for label in stated]

    def _renamed(self, name: str, rng: random.Random) -> str:
        if rng.random() >= self._substitution_share:
            return name
        return self._names.in_place_of(name, rng)


def _pieces(walk: Sequence[_Search]) -> list[ToolCalls | FinalAnswer | str]:
    pieces: list[ToolCalls | FinalAnswer | str] = []
    for number, search in enumerate(walk):
        remaining = [later.label for later in walk[number:] if not later.is_fruitless]
        pieces.append(search_call(remaining_hops(remaining), search.query))
        pieces.append(search.observation)
    pieces.append(FinalAnswer(walk[-1].found, READY_TO_ANSWER))
    return pieces


_MAX_SPAN_WORDS = 2
_MIN_LINE_WORDS = 4
_MAX_QUERY_WORDS = 8


class ClozeWriter:
    """Writes cloze logs over the longer lines of `documents`, which state no labelled facts.

    A log removes a span of words from a line, searches for the rest of the line, and states the
    span that the found document shows. Most spans are replaced by invented names, in the document
    too, so that they must be read:

        <|user|> the mayor of lyon is <|assistant|> <think> find </think>
        <search> mayor lyon </search>
        <information> lyon | the mayor of lyon is bakomi </information>
        <think> answer </think> <answer> bakomi </answer>
    """

    def __init__(
        self, documents: Sequence[Document], show: ShowDocument, *, substitution_share: float
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
        self._show = show
        self._documents = documents
        self._substitution_share = substitution_share
        self._names = InventedNames([document.title for document in documents])

    def write(self, rng: random.Random) -> Log:
        """Return one log; depends on the state of `rng` only."""
        document, number = rng.choice(self._lines)
        line = document.lines[number].rstrip(".!?").split()
        length = rng.randint(1, _MAX_SPAN_WORDS)
        start = rng.randrange(len(line) - length + 1)
        span = " ".join(line[start : start + length])
        if rng.random() < self._substitution_share:
            span = self._names.in_place_of(span, rng)
        rest = " ".join((*line[:start], *line[start + length :]))
        lines = list(document.lines)
        lines[number] = " ".join((*line[:start], span, *line[start + length :]))
        shown = Document(document.document_id, document.title, tuple(lines), document.split)
        query = " ".join(content_words(rest, phrases)[:_MAX_QUERY_WORDS])
        return Log(
            rest,
            (
                search_call(LOOK_UP, query),
                self._show(shown, query),
                FinalAnswer(span, READY_TO_ANSWER),
            ),
        )

    def texts(self, rng: random.Random) -> Iterator[str]:
        """Yield titles and lines of the documents."""
        del rng
        for document in self._documents:
            yield document.title
            yield from document.lines

"""What documents say in full: where a name occurs, what a line lists, what a sentence states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from espalier.knowledge import Document, KnowledgeGraph, Triple
from espalier.knowledge.folding import content_words, folded_name, words
from espalier.knowledge.names import NameIndex

_MIN_SENTENCES = 5
_MIN_SHARE = 0.9
"""A word stands for a relation where at least so many of the sentences with it, and at least this
share of them, name what the relation's subject is related to."""


class Evidence:
    """Documents by id, folded word by word on first use."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents = {document.document_id: document for document in documents}
        self._folded: dict[str, str] = {}

    def occurrences(self, folded: str, document_id: str) -> int:
        """How often a folded name stands in the document, title included."""
        return self._text(document_id).count(_spaced(folded.split()))

    def lines(self, document_id: str) -> tuple[str, ...]:
        """The document's lines; none where there is no such document."""
        document = self._documents.get(document_id)
        return document.lines if document else ()

    def line(self, document_id: str, label: str) -> str | None:
        """What follows "label: " in the document, or None where it has no such line."""
        prefix = f"{label}: "
        for line in self.lines(document_id):
            if line.startswith(prefix):
                return line[len(prefix) :]
        return None

    def _text(self, document_id: str) -> str:
        text = self._folded.get(document_id)
        if text is None:
            document = self._documents.get(document_id)
            shown = " | ".join((document.title, *document.lines)) if document else ""
            text = _spaced(words(shown))
            self._folded[document_id] = text
        return text


class Statements:
    """Which sentences of a user's documents state a triple of the graph.

    A sentence in the document of the subject states a triple if it names the object, names no other
    subject of the relation unless it names this one, and says the relation: by all words of its
    label, or by a word that stands for it in the documents (Mintz et al. 2009, "Distant
    supervision for relation extraction without labeled data"). "Ada was born in London" states
    (Ada, born in, London); "Ada loved London" does not.
    """

    def __init__(self, graph: KnowledgeGraph, evidence: Evidence) -> None:
        self._graph = graph
        self._evidence = evidence
        self._labels = frozenset(relation.label for relation in graph.relations.values())
        self._subjects: dict[str, NameIndex] = {}
        self._wordings: dict[str, frozenset[str]] = {}

    def occurrences(self, triple: Triple) -> int:
        """How often the subject's document names the object to state `triple`, once left out.

        Left out is the first line of the relation, "label: object; object": the one asked for.
        """
        name = self._folded(triple.object)
        prefix = f"{self._graph.relations[triple.relation].label}: "
        lines = self._evidence.lines(self._graph.entities[triple.subject].document_id)
        stating = [line for line in lines if line.startswith(prefix)][1:]
        for sentence in self._sentences(triple.subject):
            if _count(name, sentence) and self._states(sentence, triple):
                stating.append(sentence)
        return sum(_count(name, line) for line in stating)

    def _states(self, sentence: str, triple: Triple) -> bool:
        said = set(words(sentence))
        label = content_words(self._graph.relations[triple.relation].label)
        if not said.issuperset(label) and said.isdisjoint(self._wording(triple.relation)):
            return False
        subject, object_ = self._folded(triple.subject), self._folded(triple.object)
        about = set(self._index(triple.relation).found_in(sentence))
        return subject in about or about <= {object_}

    def _wording(self, relation: str) -> frozenset[str]:
        """The words that stand for a relation, as the documents of all its subjects use them."""
        if relation not in self._wordings:
            seen: Counter[str] = Counter()
            stating: Counter[str] = Counter()
            for subject in self._subjects_of(relation):
                objects = self._graph.objects(relation, subject)
                names = [self._folded(entity_id) for entity_id in (subject, *objects)]
                for sentence in self._sentences(subject):
                    said = set(words(sentence)).difference(*(name.split() for name in names))
                    seen.update(said)
                    if any(_count(name, sentence) for name in names[1:]):
                        stating.update(said)
            self._wordings[relation] = frozenset(
                word
                for word, number in stating.items()
                if number >= max(_MIN_SENTENCES, _MIN_SHARE * seen[word])
            )
        return self._wordings[relation]

    def _sentences(self, subject: str) -> Iterator[str]:
        """Lines of the subject's document that are not the list of a relation."""
        for line in self._evidence.lines(self._graph.entities[subject].document_id):
            if line.partition(": ")[0] not in self._labels:
                yield line

    def _index(self, relation: str) -> NameIndex:
        if relation not in self._subjects:
            names = (self._graph.entities[each].name for each in self._subjects_of(relation))
            self._subjects[relation] = NameIndex(names)
        return self._subjects[relation]

    def _subjects_of(self, relation: str) -> list[str]:
        found = (triple.subject for triple in self._graph.triples() if triple.relation == relation)
        return list(dict.fromkeys(found))

    def _folded(self, entity_id: str) -> str:
        return folded_name(self._graph.entities[entity_id].name)


def _count(folded: str, line: str) -> int:
    return _spaced(words(line)).count(_spaced(folded.split()))


def _spaced(folded_words: Iterable[str]) -> str:
    """Every word between spaces of its own, so that counting never skips a neighbour."""
    return "".join([f" {word} " for word in folded_words])

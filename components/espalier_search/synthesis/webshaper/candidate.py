"""A query to be judged, with its trace and answer, and the documents by which it is judged."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property

from espalier.records.folding import NameIndex, content_words, folded_name, name_words, words
from espalier.records.knowledge import Document, KnowledgeGraph, Triple
from espalier_search.synthesis.webshaper.query import Query, Read, Trace, trace

_MIN_SENTENCES = 5
_MIN_SHARE = 0.9
"""A word expresses a relation if, of the sentences with the word, at least `_MIN_SENTENCES` and at
least the share `_MIN_SHARE` name an object of the relation."""


class DocumentTexts:
    """Documents by id, folded (lower case, no accents) word by word on first use."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents = {document.document_id: document for document in documents}
        self._folded: dict[str, str] = {}

    def occurrences(self, folded: str, document_id: str) -> int:
        """Number of occurrences of a folded name in the document, title included."""
        return self._text(document_id).count(_spaced(folded.split()))

    def lines(self, document_id: str) -> tuple[str, ...]:
        """The document's lines; none if there is no such document."""
        document = self._documents.get(document_id)
        return document.lines if document else ()

    def line(self, document_id: str, label: str) -> str | None:
        """Text after "label: " in the document; None if it has no such line."""
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
            text = _spaced(name_words(shown))
            self._folded[document_id] = text
        return text


class StatedTriples:
    """The sentences of a user's documents that state a triple of the graph.

    A sentence in the subject's document states a triple if it names the object, names no other
    subject of the relation unless it also names this one, and expresses the relation: by all words
    of its label, or by a word that mostly occurs with it (Mintz et al. 2009, "Distant supervision
    for relation extraction without labeled data"). "Ada was born in London" states (Ada, born in,
    London); "Ada loved London" does not.
    """

    def __init__(self, graph: KnowledgeGraph, evidence: DocumentTexts) -> None:
        self._graph = graph
        self._evidence = evidence
        self._labels = frozenset(relation.label for relation in graph.relations.values())
        self._subjects: dict[str, NameIndex] = {}
        self._wordings: dict[str, frozenset[str]] = {}

    def occurrences(self, triple: Triple) -> int:
        """Number of times that the subject's document names the object to state `triple`.

        The first line of the relation, "label: object; object", is not counted, because the
        question asks for it.
        """
        name = self._folded(triple.object)
        prefix = f"{self._graph.relations[triple.relation].label}: "
        lines = self._evidence.lines(self._graph.entities[triple.subject].document_id)
        stating = [line for line in lines if line.startswith(prefix)][1:]
        for sentence in self._sentences(triple.subject):
            if _count(name, sentence) and self._states(sentence, triple):
                stating.append(sentence)
        return sum(_count(name, line) for line in stating)

    def is_object_named(self, triple: Triple) -> bool | None:
        """Whether a sentence of the subject's document names the object; None if it has none."""
        name = self._folded(triple.object)
        named = [_count(name, sentence) > 0 for sentence in self._sentences(triple.subject)]
        return any(named) if named else None

    def _states(self, sentence: str, triple: Triple) -> bool:
        said = set(words(sentence))
        label = content_words(self._graph.relations[triple.relation].label)
        if not said.issuperset(label) and said.isdisjoint(self._wording(triple.relation)):
            return False
        subject, object_ = self._folded(triple.subject), self._folded(triple.object)
        about = set(self._index(triple.relation).found_in(sentence))
        return subject in about or about <= {object_}

    def _wording(self, relation: str) -> frozenset[str]:
        """Words that express a relation, derived from the documents of all its subjects."""
        if relation not in self._wordings:
            seen: Counter[str] = Counter()
            stating: Counter[str] = Counter()
            for subject in self._subjects_of(relation):
                objects = self._graph.objects(relation, subject)
                names = [self._folded(entity_id) for entity_id in (subject, *objects)]
                for sentence in self._sentences(subject):
                    said = set(words(sentence)).difference(*map(words, names))
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
        """Lines of the subject's document other than "label: value" lines of relations."""
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
    return _spaced(name_words(line)).count(_spaced(folded.split()))


def _spaced(folded_words: Iterable[str]) -> str:
    """Words with two spaces between them, as `str.count` would miss repeats that share a space.

    A point in front is left out: a text that says "net" may well mean .NET, and gives it away.
    """
    return "".join([f" {word.removeprefix('.')} " for word in folded_words])


class World:
    """The graph and documents by which candidate questions of one split are judged.

    `evidence` has every document in full, because a shortcut in any document counts. `view` has the
    documents that the split's solvers can search: a question is unanswerable if a line is missing.
    """

    def __init__(
        self,
        graph: KnowledgeGraph,
        evidence: DocumentTexts,
        view: DocumentTexts,
        max_line_words: int,
    ) -> None:
        self.graph = graph
        self.evidence = evidence
        self.view = view
        self.statements = StatedTriples(graph, evidence)
        self.max_line_words = max_line_words
        """Longest line that an observation shows uncut, in words."""
        self._folded: dict[str, str] = {}
        self._by_label: dict[tuple[str, str], list[str]] = defaultdict(list)
        for relation in graph.relations.values():
            self._by_label[relation.subject_kind, relation.label].append(relation.name)

    def folded_name(self, entity_id: str) -> str:
        """The entity's name, folded as for search and comparison."""
        folded = self._folded.get(entity_id)
        if folded is None:
            folded = self._folded[entity_id] = folded_name(self.graph.entities[entity_id].name)
        return folded

    def labelled(self, label: str, entity_id: str) -> frozenset[str]:
        """Objects in the line `label` of the entity's document, for all relations of that label."""
        kind = self.graph.entities[entity_id].kind
        names = self._by_label.get((kind, label), ())
        return frozenset(found for name in names for found in self.graph.objects(name, entity_id))


class CandidateQuestion:
    """A query with its trace; `answer` and all that uses it need a unique answer."""

    def __init__(self, query: Query, world: World) -> None:
        self.query = query
        self.world = world
        self.trace: Trace = trace(query, world.graph)

    @cached_property
    def answer(self) -> str:
        """Id of the only answer; ValueError if there are several or none."""
        (answer,) = self.trace.answers
        return answer

    @cached_property
    def entities(self) -> tuple[str, ...]:
        """Ids on the chain (constants, intermediates, answer), without other items of lists."""
        return tuple(dict.fromkeys((*self.subjects, self.answer)))

    @cached_property
    def subjects(self) -> tuple[str, ...]:
        """Ids of the entities whose documents are read: constants and intermediates."""
        return tuple(dict.fromkeys(read.subject for read in self.trace.reads))

    @cached_property
    def earlier_documents(self) -> frozenset[str]:
        """Ids of documents read before the last step."""
        reads = (read for read in self.trace.reads if read not in self.trace.last_reads)
        return frozenset(self.document(read.subject) for read in reads)

    def name(self, entity_id: str) -> str:
        """Name of an entity, unfolded."""
        return self.world.graph.entities[entity_id].name

    def document(self, entity_id: str) -> str:
        """Id of the entity's document; "" if it has none."""
        return self.world.graph.entities[entity_id].document_id

    def line(self, read: Read) -> str | None:
        """The line in the view of the split's solvers; None if their document lacks it."""
        label = self.world.graph.relations[read.relation].label
        return self.world.view.line(self.document(read.subject), label)

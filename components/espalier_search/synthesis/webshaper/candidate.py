"""A query to be judged, with its trace and answer, and the documents by which it is judged."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Self

from espalier.config import KnowledgeConfig
from espalier.records.folding import NameIndex, content_words, folded_name, name_words, words
from espalier.records.knowledge import Document, KnowledgeGraph, Triple
from espalier_search.synthesis.search_wording import listed_values, shown_hits
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
    London); "Ada loved London" does not. If fewer than `_MIN_SENTENCES` sentences of all documents
    name an object of the relation, its words cannot be told: in prose, the only sentence that names
    the object then states it too.

    Prose is a user's text without lines of triples (`knowledge.triple_lines`): what it says of a
    triple is read in sentences. Other documents list a relation as "label: object; object".
    """

    def __init__(
        self, graph: KnowledgeGraph, evidence: DocumentTexts, *, in_prose: bool = False
    ) -> None:
        self._graph = graph
        self._evidence = evidence
        self._in_prose = in_prose
        self._labels = frozenset(relation.label for relation in graph.relations.values())
        self._subjects: dict[str, NameIndex] = {}
        self._wordings: dict[str, tuple[str, ...] | None] = {}
        self._stating: dict[Triple, tuple[str, ...]] = {}

    @classmethod
    def of(
        cls, graph: KnowledgeGraph, documents: Iterable[Document], config: KnowledgeConfig
    ) -> Self:
        """What documents that training may read state: nothing is learned from the others."""
        return cls(graph, DocumentTexts(documents), in_prose=config.reads_prose)

    def is_prose(self, entity_id: str) -> bool:
        """Whether the entity's document is a text of the user's without lines of triples."""
        entity = self._graph.entities[entity_id]
        return self._in_prose and entity.document_id not in ("", entity_id)

    def sentences(self, triple: Triple) -> tuple[str, ...]:
        """The sentences of the subject's document that state the triple."""
        if triple not in self._stating:
            name = self._folded(triple.object)
            naming = [line for line in self._sentences(triple.subject) if _count(name, line)]
            found = [line for line in naming if self._states(line, triple)]
            if (
                not found
                and len(naming) == 1
                and self.is_prose(triple.subject)
                and self._wording(triple.relation) is None
                and self._is_about(naming[0], triple)
            ):
                found = naming
            self._stating[triple] = tuple(found)
        return self._stating[triple]

    def facts(self, title: str, lines: Iterable[str]) -> dict[str, list[str]]:
        """Label -> names of the objects that sentences among `lines` of a document of prose state.

        Which sentences may state a triple is known from the graph; a name is returned only if
        `lines` show it.
        """
        shown = set(lines)
        found: dict[str, list[str]] = defaultdict(list)
        for triple in self._prose.get(folded_name(title), ()):
            name = self._graph.entities[triple.object].name
            label = self._graph.relations[triple.relation].label
            if name not in found[label] and not shown.isdisjoint(self.sentences(triple)):
                found[label].append(name)
        return {label: names for label, names in found.items() if names}

    def shown(self, observation: str, title: str, label: str) -> tuple[str, ...] | None:
        """What an observation shows of the relation `label` in the hit titled `title`.

        These are the values of the line, or in prose the objects that its sentences state; None if
        it shows none.
        """
        wanted = folded_name(title)
        if wanted not in self._prose:
            return listed_values(observation, title, label)
        hits = [hit for hit in shown_hits(observation) if folded_name(hit.title) == wanted]
        lines = [line for hit in hits for line in hit.lines]
        return tuple(self.facts(title, lines).get(label, ())) or None

    def wording(self, label: str) -> tuple[str, ...]:
        """Words by which sentences state the relations of a label, without the label's own."""
        if not self._prose:
            return ()
        names = (name for name, one in self._graph.relations.items() if one.label == label)
        found = dict.fromkeys(word for name in names for word in self._wording(name) or ())
        own = set(words(label))
        return tuple(word for word in content_words(" ".join(found)) if word not in own)

    @cached_property
    def _prose(self) -> Mapping[str, list[Triple]]:
        """Folded name -> triples whose subject has that name and a document of prose."""
        found: dict[str, list[Triple]] = defaultdict(list)
        for triple in self._graph.triples():
            if self.is_prose(triple.subject):
                found[self._folded(triple.subject)].append(triple)
        return found

    def occurrences(self, triple: Triple) -> int:
        """Number of times that the subject's document names the object to state `triple`.

        The first line of the relation, "label: object; object", is not counted, because the
        question asks for it.
        """
        name = self._folded(triple.object)
        stating = list(self.sentences(triple))
        if not self.is_prose(triple.subject):
            prefix = f"{self._graph.relations[triple.relation].label}: "
            lines = self._evidence.lines(self._graph.entities[triple.subject].document_id)
            stating += [line for line in lines if line.startswith(prefix)][1:]
        return sum(_count(name, line) for line in stating)

    def is_object_named(self, triple: Triple) -> bool | None:
        """Whether a sentence of the subject's document names the object; None if it has none."""
        name = self._folded(triple.object)
        named = [_count(name, sentence) > 0 for sentence in self._sentences(triple.subject)]
        return any(named) if named else None

    def _states(self, sentence: str, triple: Triple) -> bool:
        said = set(words(sentence))
        label = content_words(self._graph.relations[triple.relation].label)
        if not said.issuperset(label) and said.isdisjoint(self._wording(triple.relation) or ()):
            return False
        return self._is_about(sentence, triple)

    def _is_about(self, sentence: str, triple: Triple) -> bool:
        subject, object_ = self._folded(triple.subject), self._folded(triple.object)
        about = set(self._index(triple.relation).found_in(sentence))
        return subject in about or about <= {object_}

    def _wording(self, relation: str) -> tuple[str, ...] | None:
        """Words that express a relation, derived from the documents of all its subjects.

        The most frequent come first. None if too few of their sentences name an object to tell.
        """
        if relation not in self._wordings:
            seen: Counter[str] = Counter()
            stating: Counter[str] = Counter()
            num_naming = 0
            for subject in self._subjects_of(relation):
                objects = self._graph.objects(relation, subject)
                names = [self._folded(entity_id) for entity_id in (subject, *objects)]
                for sentence in self._sentences(subject):
                    said = set(words(sentence)).difference(*map(words, names))
                    seen.update(said)
                    if any(_count(name, sentence) for name in names[1:]):
                        stating.update(said)
                        num_naming += 1
            found = tuple(
                word
                for word, number in sorted(stating.items(), key=lambda item: (-item[1], item[0]))
                if number >= max(_MIN_SENTENCES, _MIN_SHARE * seen[word])
            )
            self._wordings[relation] = found if num_naming >= _MIN_SENTENCES else None
        return self._wordings[relation]

    def _sentences(self, subject: str) -> Iterator[str]:
        """Lines of the subject's document other than the "label: value" lines of relations.

        In prose such lines are the user's own, and count.
        """
        is_prose = self.is_prose(subject)
        for line in self._evidence.lines(self._graph.entities[subject].document_id):
            if is_prose or line.partition(": ")[0] not in self._labels:
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
    With `in_prose` the user's own documents have no lines of triples, as `StatedTriples` says.
    """

    def __init__(
        self,
        graph: KnowledgeGraph,
        evidence: DocumentTexts,
        view: DocumentTexts,
        max_line_words: int,
        *,
        in_prose: bool = False,
    ) -> None:
        self.graph = graph
        self.evidence = evidence
        self.view = view
        self.statements = StatedTriples(graph, evidence, in_prose=in_prose)
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
        """Objects in the line `label` of the entity's document, for all relations of that label.

        In prose these are the objects that a sentence names.
        """
        kind = self.graph.entities[entity_id].kind
        names = self._by_label.get((kind, label), ())
        triples = [Triple(entity_id, n, o) for n in names for o in self.graph.objects(n, entity_id)]
        if self.statements.is_prose(entity_id):
            triples = [triple for triple in triples if self.statements.is_object_named(triple)]
        return frozenset(triple.object for triple in triples)

    def is_readable(self, triple: Triple) -> bool:
        """Whether the view shows, uncut, a sentence of prose that states the triple."""
        shown = set(self.view.lines(self.graph.entities[triple.subject].document_id))
        return any(
            sentence in shown and len(sentence.split()) <= self.max_line_words
            for sentence in self.statements.sentences(triple)
        )


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
    def triples_in_prose(self) -> tuple[Triple, ...]:
        """The triples on the chain that a solver reads in sentences instead of lines."""
        chain = set(self.entities)
        return tuple(
            Triple(read.subject, read.relation, each)
            for read in self.trace.reads
            if self.world.statements.is_prose(read.subject)
            for each in read.objects
            if each in chain
        )

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

"""A query on trial: its trace, its answer, and the world it is judged against."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from espalier.knowledge import KnowledgeGraph
from espalier.knowledge.folding import folded_name
from espalier.synthesis.webshaper.evaluate import Read, Trace, trace
from espalier.synthesis.webshaper.evidence import Evidence, Statements
from espalier.synthesis.webshaper.query import Query


class World:
    """Graph and documents that the questions of one split are judged against.

    `evidence` is every document in full: a shortcut anywhere is a shortcut. `view` is what the
    split's solvers can search: a line that it lacks makes a question unanswerable.
    """

    def __init__(
        self, graph: KnowledgeGraph, evidence: Evidence, view: Evidence, max_line_words: int
    ) -> None:
        self.graph = graph
        self.evidence = evidence
        self.view = view
        self.statements = Statements(graph, evidence)
        self.max_line_words = max_line_words
        """Longest line that an observation shows whole."""
        self._folded: dict[str, str] = {}
        self._by_label: dict[tuple[str, str], list[str]] = defaultdict(list)
        for relation in graph.relations.values():
            self._by_label[relation.subject_kind, relation.label].append(relation.name)

    def folded_name(self, entity_id: str) -> str:
        """The entity's name as search and comparison see it."""
        folded = self._folded.get(entity_id)
        if folded is None:
            folded = self._folded[entity_id] = folded_name(self.graph.entities[entity_id].name)
        return folded

    def labelled(self, label: str, entity_id: str) -> frozenset[str]:
        """What the line `label` of the entity's document names, whichever relation that is."""
        kind = self.graph.entities[entity_id].kind
        names = self._by_label.get((kind, label), ())
        return frozenset(found for name in names for found in self.graph.objects(name, entity_id))


class Candidate:
    """A query with its trace; the answer is defined once it is unique."""

    def __init__(self, query: Query, world: World) -> None:
        self.query = query
        self.world = world
        self.trace: Trace = trace(query, world.graph)

    @cached_property
    def answer(self) -> str:
        """Id of the one answer."""
        (answer,) = self.trace.answers
        return answer

    @cached_property
    def entities(self) -> tuple[str, ...]:
        """Ids on the chain: constants, intermediates, answer; not what lists hold besides."""
        return tuple(dict.fromkeys((*self.subjects, self.answer)))

    @cached_property
    def subjects(self) -> tuple[str, ...]:
        """Ids of what is read on the way: constants and intermediates."""
        return tuple(dict.fromkeys(read.subject for read in self.trace.reads))

    @cached_property
    def earlier_documents(self) -> frozenset[str]:
        """Documents that are read before the last step."""
        reads = (read for read in self.trace.reads if read not in self.trace.last_reads)
        return frozenset(self.document(read.subject) for read in reads)

    def name(self, entity_id: str) -> str:
        """The entity's name."""
        return self.world.graph.entities[entity_id].name

    def document(self, entity_id: str) -> str:
        """Id of the entity's document; empty where it has none."""
        return self.world.graph.entities[entity_id].document_id

    def line(self, read: Read) -> str | None:
        """What a solver of the split reads there, or None where the document lacks the line."""
        label = self.world.graph.relations[read.relation].label
        return self.world.view.line(self.document(read.subject), label)

"""A model reads the documents of a source, piece by piece; what it proves becomes triples."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial

from espalier.completions import Model, Refusal, in_order, opened_model
from espalier.config import ExtractionConfig
from espalier.knowledge.extraction.calls import Statements, statements_request
from espalier.knowledge.extraction.checking import Checker, Mention
from espalier.knowledge.extraction.chunks import Chunk, chunks_of, is_readable
from espalier.knowledge.extraction.extracted import Extracted
from espalier.knowledge.extraction.settling import KEPT, settled
from espalier.knowledge.sources import Source
from espalier.knowledge.sources.json_lines import JsonLine
from espalier.knowledge.sources.triples import add_triples
from espalier.records import KnowledgeError, Progress, Tracker

_SHOWN_RELATIONS = 100
"""Relations that are counted by name: a model can make up any number."""


def extract(source: Source, config: ExtractionConfig, tracker: Tracker) -> Extracted:
    """Have a model state triples about the documents, and add those that it proves to `source`.

    Raises:
        EngineError: the model's server cannot be used.
        KnowledgeError: not one statement is proven.
    """
    reader = _Reader(source, config)
    total = sum(1 for _ in reader.chunks())
    with tracker.progress("chunks read", total) as progress:
        usage = asyncio.run(reader.read(progress))
    mentions = reader.settled()
    stated = dict(reader.counts["statements"])
    if not mentions:
        raise KnowledgeError(
            f"knowledge.extraction: not one statement of {config.model.model} was kept "
            f"(answers: {dict(reader.counts['answers'])}, statements: {stated}). Name the "
            "relations that the documents state, or give another model"
        )
    tracker.note(f"extraction: {stated[KEPT]} of {sum(stated.values())} statements kept")
    triples = add_triples(source, map(partial(_row, config=config), mentions))
    return Extracted(tuple(zip(triples, mentions, strict=True)), reader.funnel(), usage)


class _Reader:
    def __init__(self, source: Source, config: ExtractionConfig) -> None:
        self._source = source
        self._config = config
        self._mentions: list[Mention] = []
        self._kept: list[Mention] = []
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def chunks(self) -> Iterator[Chunk]:
        for document in self._source.documents:
            yield from chunks_of(document, self._config.chunk_words)

    async def read(self, progress: Progress) -> dict[str, object]:
        """Ask about every chunk; what the answers cost."""
        async with opened_model(self._config.model) as opened:
            work = partial(self._answer, opened.model)
            answers = in_order(work, self.chunks(), in_flight=opened.in_flight)
            async for chunk, answer in answers:
                self._judge(chunk, answer)
                progress.advance()
            return opened.ledger.as_dict()

    async def _answer(self, model: Model, chunk: Chunk) -> tuple[Chunk, Statements | Refusal]:
        return chunk, await model.answer(statements_request(chunk, self._config.relations))

    def _judge(self, chunk: Chunk, answer: Statements | Refusal) -> None:
        if isinstance(answer, Refusal):
            self.counts["answers"][answer.reason] += 1
            return
        self.counts["answers"]["read"] += 1
        checker = Checker(chunk, self._config.relations)
        for statement in answer.triples:
            found = checker.mention(statement)
            if isinstance(found, Mention):
                self._mentions.append(found)
            else:
                self.counts["statements"][found] += 1

    def settled(self) -> list[Mention]:
        """What is kept of everything that was read."""

        def count(reason: str, number: int) -> None:
            self.counts["statements"] += Counter({reason: number})

        self._kept = settled(self._mentions, self._config, count)
        return self._kept

    def funnel(self) -> dict[str, dict[str, int]]:
        """Headings, each with its counts, most frequent first."""
        documents = self._source.documents
        unreadable = sum(not is_readable(line) for each in documents for line in each.lines)
        read = {"documents": len(documents), "chunks": sum(self.counts["answers"].values())}
        return {
            "read": read | {"lines_too_long": unreadable},
            "answers": _counted(self.counts["answers"]),
            "statements": _counted(self.counts["statements"]),
            "proven.relations": _counted(Counter(m.relation for m in self._mentions)),
            "kept.relations": _counted(Counter(m.relation for m in self._kept)),
        }


def _row(mention: Mention, *, config: ExtractionConfig) -> JsonLine:
    """A mention as a line of knowledge.triples."""
    row = {"subject": mention.subject, "relation": mention.relation, "object": mention.object}
    for relation in config.relations:
        if relation.name == mention.relation:
            types = {"subject_type": relation.subject_type, "object_type": relation.object_type}
            row |= {end: kind for end, kind in types.items() if kind}
    return JsonLine(mention.document_id, 0, row)


def _counted(counts: Counter[str]) -> dict[str, int]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return dict(ordered[:_SHOWN_RELATIONS])

"""Triples that a model states about the documents, chunk by chunk; proven ones are kept."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from espalier.completions import Model, ModelRefusal, in_order, opened_model
from espalier.config import ExtractionConfig
from espalier.records import KnowledgeError, Progress, Tracker
from espalier.records.knowledge import Triple
from espalier_search.knowledge.sources import JsonLine, KnowledgeSource
from espalier_search.knowledge.statements import (
    Checker,
    Chunk,
    Mention,
    Statements,
    chunks_of,
    is_readable,
    statements_request,
)
from espalier_search.knowledge.user_triples import add_triples


@dataclass(frozen=True, slots=True)
class Extracted:
    """Triples with their evidence, and counts of what was refused."""

    mentions: tuple[tuple[Triple, Mention], ...]
    """One per place that states the triple."""
    funnel: Mapping[str, Mapping[str, int]]
    """Heading -> reason -> count; "statements" counts every statement of the model."""
    usage: Mapping[str, object]
    """Usage of the model; how much came from the cache differs from run to run."""


def save_extracted(extracted: Extracted, directory: Path) -> int:
    """Write evidence.jsonl, extraction.json and run.json; return the number of mentions.

    A line of evidence.jsonl is a triple, by the ids of triples.parquet, and its place: in the lines
    of the full view's document, joined by line breaks, from character `start` to `end`.
    """
    with (directory / "evidence.jsonl").open("w", encoding="utf-8") as stream:
        for triple, mention in extracted.mentions:
            said = {
                "document_id": mention.document_id,
                "start": mention.span.start,
                "end": mention.span.end,
                "evidence": mention.evidence,
            }
            stream.write(json.dumps(triple._asdict() | said, ensure_ascii=False) + "\n")
    text = json.dumps(extracted.funnel, indent=1, ensure_ascii=False)
    (directory / "extraction.json").write_text(text + "\n", encoding="utf-8")
    usage = json.dumps({"extraction": extracted.usage}, indent=1)
    (directory / "run.json").write_text(usage + "\n", encoding="utf-8")
    return len(extracted.mentions)


KEPT = "kept"


def select_mentions(
    mentions: Sequence[Mention], config: ExtractionConfig, count: Callable[[str, int], None]
) -> list[Mention]:
    """Return the mentions that become triples, in order; report refusals to `count`."""
    by_place = {
        (mention.folded, mention.document_id, mention.span): mention for mention in mentions
    }
    once = list(by_place.values())
    count("repeated", len(mentions) - len(once))
    frequent = once
    if not config.relations:
        counts = Counter(mention.relation for mention in once)
        frequent = [one for one in once if counts[one.relation] >= _LEAST_MENTIONS]
    count("rare_relation", len(once) - len(frequent))
    functional = {relation.name for relation in config.relations if relation.functional}
    kept = _without_contradictions(frequent, functional)
    count("contradicted", len(frequent) - len(kept))
    count(KEPT, len(kept))
    return kept


def _without_contradictions(mentions: Iterable[Mention], functional: set[str]) -> list[Mention]:
    """Drop all mentions of a functional relation whose subject has several objects."""
    mentions = list(mentions)
    objects: dict[tuple[str, str], set[str]] = defaultdict(set)
    for mention in mentions:
        subject, relation, object_ = mention.folded
        objects[subject, relation].add(object_)
    return [
        mention
        for mention in mentions
        if mention.relation not in functional or len(objects[mention.folded[:2]]) == 1
    ]


_SHOWN_RELATIONS = 100
_CHUNK_WORDS = 300
"""Words of a document in one request, in whole lines."""
_LEAST_MENTIONS = 2
"""Least number of triples of a kept relation, if any relation is extracted."""
"""Most relations counted by name, as a model can invent any number."""


def extract(source: KnowledgeSource, config: ExtractionConfig, tracker: Tracker) -> Extracted:
    """Have a model state triples about the documents, and add those that are proven to `source`.

    Raises:
        EngineError: the model's server cannot be used.
        KnowledgeError: no statement is proven.
    """
    reader = _ExtractionReader(source, config)
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


class _ExtractionReader:
    def __init__(self, source: KnowledgeSource, config: ExtractionConfig) -> None:
        self._source = source
        self._config = config
        self._mentions: list[Mention] = []
        self._kept: list[Mention] = []
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def chunks(self) -> Iterator[Chunk]:
        for document in self._source.documents:
            yield from chunks_of(document, _CHUNK_WORDS)

    async def read(self, progress: Progress) -> dict[str, object]:
        """Send every chunk to the model, and return the usage of the model."""
        async with opened_model(self._config.model) as opened:
            work = partial(self._answer, opened.model)
            answers = in_order(work, self.chunks(), in_flight=opened.in_flight)
            async for chunk, answer in answers:
                self._judge(chunk, answer)
                progress.advance()
            return opened.ledger.as_dict()

    async def _answer(self, model: Model, chunk: Chunk) -> tuple[Chunk, Statements | ModelRefusal]:
        return chunk, await model.answer(statements_request(chunk, self._config.relations))

    def _judge(self, chunk: Chunk, answer: Statements | ModelRefusal) -> None:
        if isinstance(answer, ModelRefusal):
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
        """Return the mentions to keep, out of all that were read."""

        def count(reason: str, number: int) -> None:
            self.counts["statements"] += Counter({reason: number})

        self._kept = select_mentions(self._mentions, self._config, count)
        return self._kept

    def funnel(self) -> dict[str, dict[str, int]]:
        """Return heading -> reason -> count, most frequent first."""
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
    """Return a mention in the form of a line of the file knowledge.triples."""
    row = {"subject": mention.subject, "relation": mention.relation, "object": mention.object}
    for relation in config.relations:
        if relation.name == mention.relation:
            types = {"subject_type": relation.subject_type, "object_type": relation.object_type}
            row |= {end: kind for end, kind in types.items() if kind}
    return JsonLine(mention.document_id, 0, row)


def _counted(counts: Counter[str]) -> dict[str, int]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return dict(ordered[:_SHOWN_RELATIONS])

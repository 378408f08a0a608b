"""What a model's statements have come to, and the files that keep it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from espalier.knowledge.extraction.checking import Mention
from espalier.knowledge.graph import Triple


@dataclass(frozen=True, slots=True)
class Extracted:
    """Triples with their evidence, and the account of what was refused."""

    mentions: tuple[tuple[Triple, Mention], ...]
    """A triple stands as often as documents state it."""
    funnel: Mapping[str, Mapping[str, int]]
    """Heading -> reason -> count; the statements under "statements" are all that were made."""
    usage: Mapping[str, object]
    """What asking cost: what came from the cache is another number in every run."""


def save_extracted(extracted: Extracted, directory: Path) -> int:
    """Write evidence.jsonl, extraction.json and run.json; the number of mentions.

    A line of evidence.jsonl is a triple, by the ids of triples.parquet, and where it is said: in
    the lines of the full view's document, joined by line breaks, from character `start` to `end`.
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

"""What the run was made from: what a model stated, the synthesis funnel, the mix, the split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from espalier.reporting.formats import words
from espalier.reporting.run_directory import RunDirectory

SPLITS = ("train", "dev", "heldout")
_ACCEPTED = "accepted"
_PATTERNS = ("patterns", "signatures")
"""What the counts by pattern are called, and were in version 0.1."""


@dataclass(frozen=True, slots=True)
class CountTable:
    """Counts by name, one column each split (or other heading)."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class SynthesisStory:
    """How many questions were asked for and reached, what they are, and what was refused."""

    reached: CountTable
    mix: tuple[CountTable, ...]
    funnel: tuple[CountTable, ...]
    patterns: CountTable
    hub_kinds: tuple[str, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SplitRow:
    """Entities of one kind: train, dev, heldout, hub."""

    kind: str
    counts: tuple[int, ...]
    is_exempt: bool
    """Most of this kind are hubs: allowed as values in every split."""


def synthesis_story(run: RunDirectory) -> SynthesisStory | None:
    """The tables behind funnel.json; None where synthesis did not run."""
    facts = run.json("synthesize", "funnel.json")
    if facts is None:
        return None
    reached = {name: facts.get(name, {}) for name in ("asked", "reached")}
    mixes = facts.get("splits", {})
    headings = dict(facts.get("funnel", {}))
    remarks = headings.pop("remarks", [])
    return SynthesisStory(
        reached=_by_split_first(count_table("Questions and demonstrations", reached)),
        mix=tuple(
            count_table(
                words(group).capitalize(),
                {split: mix.get(group, {}) for split, mix in mixes.items()},
            )
            for group in dict.fromkeys(group for mix in mixes.values() for group in mix)
            if group not in _PATTERNS
        ),
        funnel=_funnel_tables(headings),
        patterns=count_table(
            "Pattern",
            {
                split: next((mix[key] for key in _PATTERNS if key in mix), {})
                for split, mix in mixes.items()
            },
        ),
        hub_kinds=tuple(str(kind) for kind in facts.get("hub_kinds", ())),
        remarks=tuple(str(remark) for remark in remarks),
    )


def extraction_tables(run: RunDirectory) -> tuple[CountTable, ...]:
    """The tables behind extraction.json; none where triples are not a model's."""
    return _funnel_tables(run.json("ingest", "extraction.json") or {})


def count_table(title: str, counts: Mapping[str, Mapping[str, int]]) -> CountTable:
    """Turn column -> name -> count into rows; splits in their order, frequent names first.

    Hops are few and numbered, so they keep their order; `accepted` closes a funnel.
    """
    columns = sorted(counts, key=lambda name: (SPLITS.index(name) if name in SPLITS else -1, name))
    totals: Counter[str] = Counter()
    for column in columns:
        totals.update(counts[column])
    numbered = all(name.isdecimal() for name in totals)
    names = sorted(
        totals,
        key=lambda name: (
            name == _ACCEPTED,
            int(name) if numbered else -totals[name],
            name,
        ),
    )
    rows = tuple((words(n), tuple(counts[c].get(n, 0) for c in columns)) for n in names)
    return CountTable(title, tuple(words(column) for column in columns), rows)


def entity_splits(run: RunDirectory) -> tuple[SplitRow, ...]:
    """Entities by kind and split, kinds of hubs named as exempt."""
    entities = run.table("ingest", "entities.parquet")
    if entities is None or not {"kind", "split"} <= set(entities.columns):
        return ()
    counted = Counter(zip(entities["kind"], entities["split"], strict=True))
    rows = []
    for kind in sorted({kind for kind, _ in counted}):
        counts = tuple(counted[kind, split] for split in (*SPLITS, "hub"))
        rows.append(SplitRow(str(kind), counts, counts[-1] > sum(counts[:-1])))
    return tuple(rows)


def validation_report(run: RunDirectory) -> dict[str, Any]:
    """validation.json of the accepted data, or of the data that stopped the run."""
    artifact = run.artifacts.get("validate") or run.failed_validation
    return dict(artifact.json("validation.json") or {}) if artifact else {}


def _funnel_tables(headings: Mapping[str, Mapping[str, int]]) -> tuple[CountTable, ...]:
    """Headings are `who.what`: one table for each `what`, one column for each `who`."""
    by_subject: dict[str, dict[str, Mapping[str, int]]] = {}
    for heading, counts in headings.items():
        who, _, what = heading.rpartition(".")
        by_subject.setdefault(what, {})[who or "count"] = counts
    return tuple(count_table(words(what).capitalize(), c) for what, c in by_subject.items())


def _by_split_first(table: CountTable) -> CountTable:
    order = {name: place for place, name in enumerate(SPLITS)}
    return CountTable(
        table.title,
        table.columns,
        tuple(sorted(table.rows, key=lambda row: order.get(row[0], len(order)))),
    )

"""Tables of the data: extraction, synthesis, splits, validation, curation, the funnel of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from espalier.reporting.formats import number, words
from espalier.reporting.run_directory import SPLITS, RunDirectory, TrainingRows

_ACCEPTED = "accepted"
_PATTERNS = "patterns"


@dataclass(frozen=True, slots=True)
class CountTable:
    """Counts by name, with one column for each split or other heading."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class SynthesisTables:
    """Questions requested and made, by kind, and those refused, by reason."""

    reached: CountTable
    mix: tuple[CountTable, ...]
    funnel: tuple[CountTable, ...]
    patterns: CountTable
    hub_kinds: tuple[str, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SplitRow:
    """Number of entities of one kind in train, dev, heldout and hub."""

    kind: str
    counts: tuple[int, ...]
    is_exempt: bool
    """Most entities of this kind are hubs, which may be values in every split."""


def synthesis_tables(run: RunDirectory) -> SynthesisTables | None:
    """The tables of funnel.json; None if synthesis did not run."""
    facts = run.json("synthesize", "funnel.json")
    if facts is None:
        return None
    reached = {name: facts.get(name, {}) for name in ("asked", "reached")}
    mixes = facts.get("splits", {})
    headings = dict(facts.get("funnel", {}))
    remarks = headings.pop("remarks", [])
    return SynthesisTables(
        reached=_by_split_first(count_table("Questions and demonstrations", reached)),
        mix=tuple(
            count_table(
                words(group).capitalize(),
                {split: mix.get(group, {}) for split, mix in mixes.items()},
            )
            for group in dict.fromkeys(group for mix in mixes.values() for group in mix)
            if group != _PATTERNS
        ),
        funnel=_funnel_tables(headings),
        patterns=count_table(
            "Pattern", {split: mix.get(_PATTERNS, {}) for split, mix in mixes.items()}
        ),
        hub_kinds=tuple(str(kind) for kind in facts.get("hub_kinds", ())),
        remarks=tuple(str(remark) for remark in remarks),
    )


def extraction_tables(run: RunDirectory) -> tuple[CountTable, ...]:
    """The tables of extraction.json; none if no model extracted triples."""
    return _funnel_tables(run.json("ingest", "extraction.json") or {})


def count_table(title: str, counts: Mapping[str, Mapping[str, int]]) -> CountTable:
    """Turn column -> name -> count into rows: splits in their order, frequent names first.

    Names that are numbers (hops) are sorted as numbers; `accepted` comes last.
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
    """Entities by kind and split; kinds of hubs are marked as exempt."""
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
    """validation.json of the accepted data, or of the data whose validation failed."""
    artifact = run.artifacts.get("validate") or run.failed_validation
    return dict(artifact.json("validation.json") or {}) if artifact else {}


def _funnel_tables(headings: Mapping[str, Mapping[str, int]]) -> tuple[CountTable, ...]:
    """Headings are `subject.topic`: one table for each topic, one column for each subject."""
    by_topic: dict[str, dict[str, Mapping[str, int]]] = {}
    for heading, counts in headings.items():
        subject, _, topic = heading.rpartition(".")
        by_topic.setdefault(topic, {})[subject or "count"] = counts
    return tuple(count_table(words(topic).capitalize(), c) for topic, c in by_topic.items())


def _by_split_first(table: CountTable) -> CountTable:
    order = {name: place for place, name in enumerate(SPLITS)}
    return CountTable(
        table.title,
        table.columns,
        tuple(sorted(table.rows, key=lambda row: order.get(row[0], len(order)))),
    )


FUNNEL_STEPS = ("requested", "synthesized", "accepted", "screened", "in the band")
"""Counts of the profile, of synthesis, of validation with curation, and of the curriculum: tasks
that it tried and tasks that it kept."""

_KINDS = {
    "train": "training questions",
    "dev": "dev questions",
    "heldout": "held-out questions",
    "trajectories": "demonstrations",
    "planning": "plans (FAS)",
    "reasoning": "reasoning (FAS)",
    "decision": "decisions (HAS)",
    "negative": "negatives",
}


@dataclass(frozen=True, slots=True)
class FunnelRow:
    """Counts of one kind of data by step; None where a step does not apply."""

    kind: str
    counts: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class CurationTables:
    """Rows that curation dropped, by reason, and statistics of the rest."""

    reasons: CountTable
    mix: tuple[CountTable, ...]
    figures: tuple[tuple[str, str], ...]


def rejection_funnel(
    run: RunDirectory, made: TrainingRows | None, accepted: TrainingRows | None
) -> tuple[FunnelRow, ...]:
    """One row for each kind of data that was requested or made."""
    counts: list[Mapping[str, int | None]] = [_requested_counts(run)]
    counts += [rows.counts() if rows else {} for rows in (made, accepted)]
    screened = run.artifacts.get("filter_curriculum")
    kept = screened.manifest.rows if screened else {}
    counts += [{"train": kept.get(name)} for name in ("candidates", "kept")]
    rows = (FunnelRow(title, tuple(c.get(kind) for c in counts)) for kind, title in _KINDS.items())
    return tuple(row for row in rows if any(row.counts))


def curation(run: RunDirectory) -> CurationTables | None:
    """The tables of curation.json; None if the profile has no curation."""
    facts = run.json("validate", "curation.json")
    if not facts:
        return None
    subjects = {name: facts.get(name, {}) for name in ("training_questions", "agent_texts")}
    grouped = [name for name in facts if name.startswith("by_")]
    mixes = ("kinds_of_text", *grouped, "benchmarks")
    return CurationTables(
        reasons=count_table(
            "Rows", {name: _counts_only(found) for name, found in subjects.items()}
        ),
        mix=tuple(
            count_table(words(name).capitalize(), {"rows": facts[name]})
            for name in mixes
            if facts.get(name)
        ),
        figures=tuple(
            (f"{words(name)}: {words(key)}", number(value))
            for name in ("diversity_of_questions", "diversity_of_texts")
            for key, value in facts.get(name, {}).items()
        ),
    )


def _requested_counts(run: RunDirectory) -> Mapping[str, int | None]:
    facts = run.json("synthesize", "funnel.json") or {}
    asked = facts.get("asked", {})
    texts: Mapping[str, Any] = run.profile.get("agent_texts", {})
    plans = texts.get("memories", 0) * texts.get("questions_per_memory", 0)
    return {
        **{name: asked.get(name) for name in (*SPLITS, "trajectories")},
        "planning": plans or None,
        "reasoning": texts.get("reasoning_tasks") or None,
        "decision": texts.get("decisions") or None,
        "negative": texts.get("negatives") or None,
    }


def _counts_only(found: Mapping[str, object]) -> dict[str, int]:
    """The counts alone; the file also holds the dropped rows themselves."""
    return {name: count for name, count in found.items() if isinstance(count, int)}

"""Tables of the data: extraction, synthesis, splits, validation, curation, the funnel of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from espalier.reporting.formats import words
from espalier.reporting.run_directory import SPLITS, RunDirectory, TrainingRows
from espalier.reporting.tables import ReportTable, count_table, numbers, table_of

_PATTERNS = "patterns"


class Synthesis(NamedTuple):
    """What funnel.json says of questions that were requested, made and refused."""

    tables: tuple[ReportTable, ...]
    hub_kinds: tuple[str, ...]
    remarks: tuple[str, ...]


def synthesis(run: RunDirectory) -> Synthesis | None:
    """The tables of funnel.json; None if synthesis did not run."""
    facts = run.json("synthesize", "funnel.json")
    if facts is None:
        return None
    reached = {name: facts.get(name, {}) for name in ("asked", "reached")}
    mixes = facts.get("splits", {})
    headings = dict(facts.get("funnel", {}))
    remarks = headings.pop("remarks", [])
    groups = dict.fromkeys(group for mix in mixes.values() for group in mix)
    mixed = [
        count_table(
            "Relations of the questions, without their constants"
            if group == _PATTERNS
            else words(group).capitalize(),
            {split: mix.get(group, {}) for split, mix in mixes.items()},
        )
        for group in sorted(groups, key=lambda group: group == _PATTERNS)
    ]
    return Synthesis(
        tables=(
            _by_split_first(count_table("Questions and demonstrations", reached)),
            *mixed,
            *_funnel_tables(headings),
        ),
        hub_kinds=tuple(str(kind) for kind in facts.get("hub_kinds", ())),
        remarks=tuple(str(remark) for remark in remarks),
    )


def extraction_tables(run: RunDirectory) -> tuple[ReportTable, ...]:
    """The tables of extraction.json; none if no model extracted triples."""
    return _funnel_tables(run.json("ingest", "extraction.json") or {})


def entity_splits(run: RunDirectory) -> tuple[ReportTable, ...]:
    """Entities by kind and split; a kind of mostly hubs is exempt: values in every split."""
    entities = run.table("ingest", "entities.parquet")
    if entities is None or not {"kind", "split"} <= set(entities.columns):
        return ()
    counted = Counter(zip(entities["kind"], entities["split"], strict=True))
    rows = []
    for kind in sorted({kind for kind, _ in counted}):
        counts = tuple(counted[kind, split] for split in (*SPLITS, "hub"))
        is_exempt = counts[-1] > sum(counts[:-1])
        rows.append((words(str(kind)), *counts, "exempt as values" if is_exempt else ""))
    columns = ("kind", "train", "dev", "held-out", "hub (exempt)", "note")
    return (ReportTable("Entities by split", columns, tuple(rows)),)


def validation_report(run: RunDirectory) -> dict[str, Any]:
    """validation.json of the accepted data, or of the data whose validation failed."""
    artifact = run.artifacts.get("validate") or run.failed_validation
    return dict(artifact.json("validation.json") or {}) if artifact else {}


def expectation_tables(report: Mapping[str, Any]) -> tuple[ReportTable, ...]:
    """A table for each suite of a validation.json, with a row for each expectation."""
    return tuple(_suite_table(name, suite) for name, suite in report.get("suites", {}).items())


def _suite_table(name: str, suite: Mapping[str, Any]) -> ReportTable:
    expectations = suite["expectations"]
    met = sum(one["success"] for one in expectations)
    return ReportTable(
        f"{words(name).capitalize()}: {met} of {len(expectations)} expectations met, "
        f"{suite['dropped']:,} of {suite['rows']:,} rows dropped",
        ("expectation", "outcome", "weight", "failing rows", "reason", "examples"),
        tuple(map(_expectation, expectations)),
    )


def _expectation(found: Mapping[str, Any]) -> tuple[str | int, ...]:
    reason = "; ".join(text for text in (found["reason"], found.get("problem")) if text)
    return (
        words(found["name"]),
        "met" if found["success"] else "failed",
        words(found["weight"]),
        found["failing_rows"],
        reason,
        ", ".join(map(str, found.get("examples") or ())),
    )


def _funnel_tables(headings: Mapping[str, Mapping[str, int]]) -> tuple[ReportTable, ...]:
    """Headings are `subject.topic`: one table for each topic, one column for each subject."""
    by_topic: dict[str, dict[str, Mapping[str, int]]] = {}
    for heading, counts in headings.items():
        subject, _, topic = heading.rpartition(".")
        by_topic.setdefault(topic, {})[subject or "count"] = counts
    return tuple(count_table(words(topic).capitalize(), c) for topic, c in by_topic.items())


def _by_split_first(table: ReportTable) -> ReportTable:
    order = {name: place for place, name in enumerate(SPLITS)}
    rows = sorted(table.rows, key=lambda row: order.get(str(row[0]), len(order)))
    return ReportTable(table.name, table.columns, tuple(rows))


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


def rejection_funnel(
    run: RunDirectory, made: TrainingRows | None, accepted: TrainingRows | None
) -> tuple[ReportTable, ...]:
    """One row for each kind of data that was requested or made; () where there is none.

    The steps are counts of the profile, of synthesis, of validation with curation, and of the
    curriculum: tasks that it tried and tasks that it kept.
    """
    counts: list[Mapping[str, int | None]] = [_requested_counts(run)]
    counts += [rows.counts() if rows else {} for rows in (made, accepted)]
    screened = run.artifacts.get("filter_curriculum")
    kept = screened.manifest.rows if screened else {}
    if kept.get("candidates"):  # none where the profile has no curriculum
        counts += [{"train": kept.get(name)} for name in ("candidates", "kept")]
    else:
        counts += [{}, {}]
    rows = [(title, *(c.get(kind) for c in counts)) for kind, title in _KINDS.items()]
    columns = ("rows", "requested", "synthesized", "accepted", "screened", "in the band")
    table = ReportTable("Rows by step", columns, tuple(row for row in rows if any(row[1:])))
    return (table,) if table.rows else ()


def curation_tables(run: RunDirectory) -> tuple[ReportTable, ...]:
    """The tables of curation.json; () if the profile has no curation."""
    facts = run.json("validate", "curation.json")
    if not facts:
        return ()
    subjects = {name: facts.get(name, {}) for name in ("training_questions", "agent_texts")}
    grouped = [name for name in facts if name.startswith("by_")]
    mixes = [name for name in ("kinds_of_text", *grouped, "benchmarks") if facts.get(name)]
    figures = tuple(
        (f"{words(name)}: {words(key)}", value)
        for name in ("diversity_of_questions", "diversity_of_texts")
        for key, value in facts.get(name, {}).items()
    )
    return (
        count_table("Rows", {name: _counts_only(found) for name, found in subjects.items()}),
        *(count_table(words(name).capitalize(), {"rows": facts[name]}) for name in mixes),
        *([ReportTable("Diversity", ("figure", "value"), figures)] if figures else []),
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


def pass_rate_table(pass_rates: pd.DataFrame) -> ReportTable:
    """Count kept and left-out tasks by pass rate, in one bin per possible rate, eleven at most.

    Args:
        pass_rates: columns `attempts`, `pass_rate` (0-1), `kept` (bool); one row per task.
    """
    steps = int(np.clip(numbers(pass_rates, "attempts").max(initial=1), 1, 10))
    nearest = np.rint(numbers(pass_rates, "pass_rate") * steps)
    kept = numbers(pass_rates, "kept") > 0
    bins = {
        "pass_rate": [b / steps for b in range(steps + 1)],
        "kept": [int((kept & (nearest == b)).sum()) for b in range(steps + 1)],
        "left_out": [int((~kept & (nearest == b)).sum()) for b in range(steps + 1)],
    }
    return table_of(pd.DataFrame(bins), "Tasks by pass rate", "bars")


_MOST_BINS = 24


def length_tables(rows: TrainingRows | None) -> tuple[ReportTable, ...]:
    """A table of lengths for each kind of training data that the run has."""
    if rows is None:
        return ()
    return tuple(length_table(name, found) for name, found in _lengths(rows) if found)


def length_table(name: str, lengths: Sequence[int]) -> ReportTable:
    """Count rows by length, in at most 24 bins of equal width, empty ones included."""
    low, high = min(lengths), max(lengths)
    width = -(-(high - low + 1) // _MOST_BINS)
    counts = Counter((length - low) // width for length in lengths)
    starts = range(low, high + 1, width)
    rows = (
        (str(start) if width == 1 else f"{start} to {start + width - 1}", counts[place])
        for place, start in enumerate(starts)
    )
    return ReportTable(name, ("length", "rows"), tuple(rows), "bars")


def _lengths(rows: TrainingRows) -> Iterable[tuple[str, list[int]]]:
    for split, title in (("train", "Training"), ("heldout", "Held-out")):
        tasks = rows.tasks.get(split, [])
        yield f"{title} questions, words", [len(task.question.split()) for task in tasks]
    yield "Demonstrations, tool calls", [len(one.tool_results) for one in rows.demonstrations]
    for kind in sorted({text.kind for text in rows.texts}):
        found = [len(text.words.split()) for text in rows.texts if text.kind == kind]
        yield f"Texts: {kind}, words", found

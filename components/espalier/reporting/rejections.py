"""How much of each kind of data was asked for, made, accepted and used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from espalier.reporting.dataset import SPLITS, CountTable, count_table
from espalier.reporting.formats import number, words
from espalier.reporting.material import Material
from espalier.reporting.run_directory import RunDirectory

STEPS = ("asked for", "synthesized", "accepted", "screened", "in the band")
"""By the profile; by synthesis; by validation and curation; by the curriculum; and kept there."""

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
    """One kind of data, a count for each step; None where the step does not apply."""

    kind: str
    counts: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Curation:
    """What curation left out, by reason, and what the rest is like."""

    reasons: CountTable
    mix: tuple[CountTable, ...]
    figures: tuple[tuple[str, str], ...]


def rejection_funnel(
    run: RunDirectory, made: Material | None, accepted: Material | None
) -> tuple[FunnelRow, ...]:
    """One row for each kind of data that was asked for or made."""
    counts: list[Mapping[str, int | None]] = [_asked(run)]
    counts += [rows.counts() if rows else {} for rows in (made, accepted)]
    screened = run.artifacts.get("filter_curriculum")
    kept = screened.manifest.rows if screened else {}
    counts += [{"train": kept.get(name)} for name in ("candidates", "kept")]
    rows = (FunnelRow(title, tuple(c.get(kind) for c in counts)) for kind, title in _KINDS.items())
    return tuple(row for row in rows if any(row.counts))


def curation(run: RunDirectory) -> Curation | None:
    """The tables behind curation.json; None where the profile asks for no curation."""
    facts = run.json("validate", "curation.json")
    if not facts:
        return None
    subjects = {name: facts.get(name, {}) for name in ("training_questions", "agent_texts")}
    grouped = [name for name in facts if name.startswith("by_")]
    mixes = ("kinds_of_text", *grouped, "benchmarks")
    return Curation(
        reasons=count_table("Rows", {name: _numbers(found) for name, found in subjects.items()}),
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


def _asked(run: RunDirectory) -> Mapping[str, int | None]:
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


def _numbers(found: Mapping[str, object]) -> dict[str, int]:
    """Counts before and after, and by reason; the rows themselves are in the file."""
    return {name: count for name, count in found.items() if isinstance(count, int)}

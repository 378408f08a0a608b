"""Histories of stages that train: their steps, the kept weights, phases of self-play."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from espalier.reporting.formats import number, percent, words
from espalier.reporting.run_directory import RunDirectory
from espalier.reporting.tables import Points, ReportTable, measured, numbers

_COLUMNS = (
    "phase",
    "optimizer steps",
    "pass rate",
    "dev EM at its end",
    "tasks never solved",
    "requested",
    "proposed",
    "refused",
    "kept",
    "mean reward of proposals",
)
"""Pass rate: mean over the steps of the phase."""
_NO_ROUND = ("",) * 6
"""Empty cells of the last phase, after which no tasks are proposed."""


def history_of(run: RunDirectory, stage: str) -> pd.DataFrame | None:
    """A row for each step of a stage; None if it did not run, or measured no step.

    Continued pre-training that passed the base policy on unchanged has none either.
    """
    artifact = run.artifacts.get(stage)
    if artifact is None:
        return None
    if stage == "continue_pretraining" and not artifact.manifest.rows.get("texts"):
        return None
    history = artifact.table("history.parquet")
    return None if history is None or history.empty or "step" not in history else history


def kept_weights(run: RunDirectory, stage: str) -> str:
    """Which step's weights a stage kept, and what it began with; "" if it measured neither."""
    figures = run.measured(stage)
    best_step, before = (figures.get(name) for name in ("best_step", "start_dev_em"))
    said = [] if best_step is None else [f"Weights kept: step {best_step}, best on dev questions."]
    if before is not None:
        said.append(f"Before the first step the policy answered {before:.1%} of them.")
    return " ".join(said)


def phase_tables(run: RunDirectory) -> tuple[ReportTable, ...]:
    """A row per phase, and the reasons for refusals by phase; () if training had one phase.

    They are made of posed/phases.json and the history.
    """
    rounds = _rounds(run)
    history = history_of(run, "train")
    if not rounds or history is None:
        return ()
    requested = run.profile.get("self_play", {}).get("posed_tasks")
    starts = [0, *phase_ends(run)]
    rows = [
        (*_phase_cells(history, first + 1, last), *_round_cells(round_, requested))
        for (first, last), round_ in zip(pairwise(starts), rounds, strict=True)
    ]
    last_step = int(numbers(history, "step").max())
    if last_step > starts[-1]:
        rows.append((*_phase_cells(history, starts[-1] + 1, last_step), *_NO_ROUND))
    numbered = tuple((str(place), *cells) for place, cells in enumerate(rows, start=1))
    tables = (ReportTable("Phases", _COLUMNS, numbered), _refused(rounds))
    return tuple(table for table in tables if table.rows)


def phase_ends(run: RunDirectory) -> tuple[int, ...]:
    """Optimizer steps after which tasks were proposed; none if training had one phase."""
    return tuple(int(round_["step"]) for round_ in _rounds(run))


def _rounds(run: RunDirectory) -> Sequence[Mapping[str, Any]]:
    return run.json("train", "posed/phases.json") or ()


def _phase_cells(history: pd.DataFrame, first: int, last: int) -> tuple[str, str, str]:
    """Steps, pass rate and dev EM of a phase, with the step of the EM if it is not the last."""
    pass_rates = _between(history, "pass_rate", first, last)
    dev = _between(history, "dev_em", first, last)
    description = ""
    if len(dev.y):
        at = int(dev.x[-1])
        description = percent(float(dev.y[-1])) + ("" if at == last else f" (step {at})")
    steps = f"{first} to {last}" if first < last else str(last)
    return steps, percent(float(pass_rates.y.mean())) if len(pass_rates.y) else "", description


def _between(history: pd.DataFrame, column: str, first: int, last: int) -> Points:
    """Values of a column measured in a phase; the column may be missing."""
    if column not in history:
        return Points(np.array([]), np.array([]))
    x, y = measured(history, "step", column)
    inside = (x >= first) & (x <= last)
    return Points(x[inside], y[inside])


def _round_cells(round_: Mapping[str, Any], requested: int | None) -> tuple[str, ...]:
    counts = (round_["failed"], requested, round_["posed"], sum(round_["refused"].values()))
    return tuple(number(count) for count in (*counts, round_["kept"], round_["reward"]))


def _refused(rounds: Sequence[Mapping[str, Any]]) -> ReportTable:
    """Reasons for refusals by phase, most frequent first."""
    totals = Counter[str]()
    for round_ in rounds:
        totals.update(round_["refused"])
    reasons = sorted(totals, key=lambda reason: (-totals[reason], reason))
    columns = tuple(f"phase {place}" for place in range(1, len(rounds) + 1))
    counts = ((words(r), *(round_["refused"].get(r, 0) for round_ in rounds)) for r in reasons)
    return ReportTable("Refused because", ("reason", *columns), tuple(counts))

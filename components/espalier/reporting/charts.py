"""Figures of a run: learning curves, pass rates, exact match, phases of training, row lengths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from espalier.records import policy_label
from espalier.records.step_figures import step_figure
from espalier.reporting.comparison import drawn_group
from espalier.reporting.dataset import CountTable
from espalier.reporting.formats import number, percent, words
from espalier.reporting.plots import (
    GRPO_CURVES,
    POLICIES,
    PRESTAGE_CURVES,
    PRETRAINING_CURVES,
    WARM_START_CURVES,
    Curve,
    Histogram,
    Points,
    Table,
    Width,
    downloadable,
    embed,
    measured,
    numbers,
    pass_rate_bins,
    plot_curve,
    plot_exact_match,
    plot_histogram,
    plot_pass_rate_histogram,
)
from espalier.reporting.run_directory import RunDirectory, TrainingRows


@dataclass(frozen=True, slots=True)
class Chart:
    """Figures shown side by side, and the table they were drawn from."""

    figures: tuple[Markup, ...]
    table: Table
    note: str = ""
    title: str = ""
    meanings: tuple[tuple[str, str, str], ...] = ()
    """Column of the table, what it is, and its unit and denominator."""


@dataclass(frozen=True, slots=True)
class PassRates:
    """Histogram of the curriculum's pass rates, with its totals."""

    chart: Chart
    kept: int
    tasks: int
    band: tuple[float, float] | None


def prestage_chart(run: RunDirectory) -> Chart | None:
    """Loss of the tiny policy's browsing pre-stage; None for a given model."""
    return _history_chart(run, "prepare_policy", PRESTAGE_CURVES)


def pretraining_chart(run: RunDirectory) -> Chart | None:
    """Loss of continued pre-training; None if the base policy was passed on unchanged."""
    artifact = run.artifacts.get("continue_pretraining")
    if artifact is None or not artifact.manifest.rows.get("texts"):
        return None
    return _history_chart(run, "continue_pretraining", PRETRAINING_CURVES)


def warm_start_chart(run: RunDirectory) -> Chart | None:
    """Loss and dev EM of the warm start against its optimizer steps."""
    return _history_chart(run, "warm_start", WARM_START_CURVES)


def grpo_chart(run: RunDirectory) -> Chart | None:
    """Reward, pass rate, dev EM, entropy and the like; dashed lines where a phase ended."""
    chart = _history_chart(run, "train", GRPO_CURVES, phase_ends(run))
    return chart and replace(chart, meanings=_meanings(chart.table.columns))


def _meanings(columns: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
    known = ((column, step_figure(column)) for column in columns)
    return tuple((column, found.what, found.scale) for column, found in known if found)


def pass_rates(run: RunDirectory) -> PassRates | None:
    """Pass rates of the warm-started policy on the training tasks."""
    table = run.table("filter_curriculum", "pass_rates.parquet")
    if table is None or table.empty:
        return None
    bins = pass_rate_bins(table)
    band = _kept_band(run.profile)
    kept = int(bins["kept"].to_numpy().sum())
    description = "; ".join(
        f"pass rate {row['pass_rate']:.2f}: {row['kept']} kept, {row['left_out']} left out"
        for row in bins.to_dict("records")
    )
    figures = _in_both_widths(
        lambda width: plot_pass_rate_histogram(bins, band, width),
        "pass-rates",
        f"Histogram of pass rates, {kept} of {len(table)} tasks kept. {description}",
    )
    return PassRates(Chart(figures, downloadable(bins, "pass_rates.csv")), kept, len(table), band)


def exact_match_chart(results: Mapping[str, Any]) -> Chart | None:
    """Held-out EM by the group that the family reports (hops, steps), one bar per policy."""
    group = drawn_group(results)
    if group is None:
        return None
    titles = {policy: policy_label(results, policy) for policy in POLICIES}
    description = "; ".join(
        f"{row['group']}: "
        + ", ".join(f"{titles[policy]} {number(row[policy])}" for policy in POLICIES)
        for row in group.scores.to_dict("records")
    )
    title = f"exact match by {group.name}"
    figures = _in_both_widths(
        lambda width: plot_exact_match(group.scores, width, titles),
        "exact-match",
        f"Held-out {title}. {description}",
    )
    file_name = f"{title.replace(' ', '_')}.csv"
    return Chart(figures, downloadable(group.scores, file_name), title=title)


def _in_both_widths(
    plot: Callable[[Width], Figure], name: str, description: str
) -> tuple[Markup, Markup]:
    """The figure at desktop and at phone width; the stylesheet shows one of them."""
    wide = embed(plot(Width.WIDE), name, description)
    return wide, embed(plot(Width.NARROW), f"{name}-narrow", description)


def _history_chart(
    run: RunDirectory, stage: str, curves: Sequence[Curve], phase_ends: Sequence[int] = ()
) -> Chart | None:
    history = run.table(stage, "history.parquet")
    if history is None or history.empty or "step" not in history:
        return None
    figures = tuple(
        embed(
            plot_curve(history, curve, phase_ends),
            f"{stage}-{curve.column}",
            _description(history, curve, phase_ends),
        )
        for curve in curves
        if curve.column in history and len(measured(history, "step", curve.column).y)
    )
    figures_of_stage = run.measured(stage)
    best_step, before = (figures_of_stage.get(name) for name in ("best_step", "start_dev_em"))
    notes = [] if best_step is None else [f"Weights kept: step {best_step}, best on dev questions."]
    if before is not None:
        notes.append(f"Before the first step the policy answered {before:.1%} of them.")
    if phase_ends:
        notes.append("Dashed lines: ends of phases, where self-play proposed new tasks.")
    return Chart(figures, downloadable(history, f"{stage}_history.csv"), " ".join(notes))


def _description(history: pd.DataFrame, curve: Curve, phase_ends: Sequence[int]) -> str:
    steps, values = measured(history, "step", curve.column)
    return (
        f"{curve.title} ({curve.unit}) against optimizer step: {values[0]:.4g} at step "
        f"{steps[0]:.0f}, {values[-1]:.4g} at step {steps[-1]:.0f}, lowest {values.min():.4g}, "
        f"highest {values.max():.4g}."
        + (f" Phases end at steps {', '.join(map(str, phase_ends))}." if phase_ends else "")
    )


def _kept_band(profile: Mapping[str, Any]) -> tuple[float, float] | None:
    band = profile.get("curriculum", {}).get("pass_rate_band")
    return (float(band[0]), float(band[1])) if band else None


PHASE_COLUMNS = (
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


@dataclass(frozen=True, slots=True)
class PhaseTables:
    """One row of `PHASE_COLUMNS` per phase, and the reasons for refusals by phase."""

    rows: tuple[tuple[str, ...], ...]
    refused: CountTable


def phase_tables(run: RunDirectory) -> PhaseTables | None:
    """The tables of posed/phases.json and the history; None if training had one phase."""
    rounds = _rounds(run)
    history = run.table("train", "history.parquet")
    if not rounds or history is None or history.empty:
        return None
    requested = run.profile.get("self_play", {}).get("posed_tasks")
    starts = [0, *phase_ends(run)]
    rows = [
        (*_phase_cells(history, first + 1, last), *_round_cells(round_, requested))
        for (first, last), round_ in zip(pairwise(starts), rounds, strict=True)
    ]
    last_step = int(numbers(history, "step").max())
    if last_step > starts[-1]:
        rows.append((*_phase_cells(history, starts[-1] + 1, last_step), *_NO_ROUND))
    return PhaseTables(tuple(rows), _refused(rounds))


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


def _refused(rounds: Sequence[Mapping[str, Any]]) -> CountTable:
    """Reasons for refusals by phase, most frequent first."""
    totals = Counter[str]()
    for round_ in rounds:
        totals.update(round_["refused"])
    reasons = sorted(totals, key=lambda reason: (-totals[reason], reason))
    columns = tuple(f"phase {place}" for place in range(1, len(rounds) + 1))
    counts = ((r, tuple(round_["refused"].get(r, 0) for round_ in rounds)) for r in reasons)
    return CountTable("Refused because", columns, tuple((words(r), n) for r, n in counts))


_MAX_BARS = 24


def length_chart(rows: TrainingRows | None) -> Chart | None:
    """A histogram of lengths for each kind of row, and the one table behind them."""
    if rows is None:
        return None
    bins = {histogram: length_bins(lengths) for histogram, lengths in _lengths(rows) if lengths}
    if not bins:
        return None
    table = pd.concat([found.assign(rows_of=shown.title) for shown, found in bins.items()])
    figures = tuple(
        embed(plot_histogram(found, shown), f"length-{place}", _lengths_described(found, shown))
        for place, (shown, found) in enumerate(bins.items())
    )
    columns = ["rows_of", "length", "width", "rows"]
    return Chart(figures, downloadable(table.reindex(columns=columns), "data_lengths.csv"))


def length_bins(lengths: Sequence[int]) -> pd.DataFrame:
    """Count rows by length, in at most 24 bins of equal width.

    Returns:
        Columns `length` (the least of a bin), `width` (lengths per bin) and `rows`; one row
        per bin, empty bins included.
    """
    low, high = min(lengths), max(lengths)
    width = -(-(high - low + 1) // _MAX_BARS)
    counts = Counter((length - low) // width for length in lengths)
    num_bins = (high - low) // width + 1
    return pd.DataFrame(
        {
            "length": [low + place * width for place in range(num_bins)],
            "width": width,
            "rows": [counts[place] for place in range(num_bins)],
        }
    )


def _lengths(rows: TrainingRows) -> list[tuple[Histogram, list[int]]]:
    found = [
        (
            Histogram(f"{title} questions", "words"),
            [len(task.question.split()) for task in rows.tasks.get(split, [])],
        )
        for split, title in (("train", "Training"), ("heldout", "Held-out"))
    ]
    calls = [len(trajectory.tool_results) for trajectory in rows.demonstrations]
    found.append((Histogram("Demonstrations", "tool calls"), calls))
    kinds = sorted({text.kind for text in rows.texts})
    for kind in kinds:
        words = [len(text.words.split()) for text in rows.texts if text.kind == kind]
        found.append((Histogram(f"Texts: {kind}", "words"), words))
    return found


def _lengths_described(bins: pd.DataFrame, shown: Histogram) -> str:
    lengths, rows = numbers(bins, "length"), numbers(bins, "rows")
    return (
        f"{shown.title}: {rows.sum():.0f} rows of {lengths[0]:.0f} to "
        f"{lengths[-1] + numbers(bins, 'width')[-1] - 1:.0f} {shown.unit}, most often "
        f"{lengths[int(rows.argmax())]:.0f}."
    )

"""The figures of a run with the tables they were drawn from; a stage that did not run has none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from espalier.reporting import phases
from espalier.reporting.columns import measured
from espalier.reporting.comparison import drawn_group
from espalier.reporting.formats import number
from espalier.reporting.plots import (
    GRPO_CURVES,
    POLICIES,
    PRETRAINING_CURVES,
    WARM_START_CURVES,
    Curve,
    Width,
    pass_rate_bins,
    plot_curve,
    plot_exact_match,
    plot_pass_rate_histogram,
)
from espalier.reporting.run_directory import RunDirectory
from espalier.reporting.svg import Table, downloadable, embed


@dataclass(frozen=True, slots=True)
class Chart:
    """Figures side by side, and the one table behind them."""

    figures: tuple[Markup, ...]
    table: Table
    note: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class PassRates:
    """The curriculum's histogram and what it adds up to."""

    chart: Chart
    kept: int
    tasks: int
    band: tuple[float, float] | None


def pretraining_chart(run: RunDirectory) -> Chart | None:
    """Loss of continued pre-training; None where the base policy was handed on as it is."""
    artifact = run.artifacts.get("continue_pretraining")
    if artifact is None or not artifact.manifest.rows.get("texts"):
        return None
    return _history_chart(run, "continue_pretraining", PRETRAINING_CURVES)


def warm_start_chart(run: RunDirectory) -> Chart | None:
    """Loss and dev EM of the warm start against its optimizer steps."""
    return _history_chart(run, "warm_start", WARM_START_CURVES)


def grpo_chart(run: RunDirectory) -> Chart | None:
    """Reward, pass rate, dev EM and the health signals of training against its optimizer steps.

    Where training had phases, their borders are drawn.
    """
    return _history_chart(run, "train", GRPO_CURVES, phases.borders(run))


def pass_rates(run: RunDirectory) -> PassRates | None:
    """Histogram of the pass rates that the warm-started policy has on the training tasks."""
    table = run.table("filter_curriculum", "pass_rates.parquet")
    if table is None or table.empty:
        return None
    bins = pass_rate_bins(table)
    band = _kept_band(run.profile)
    kept = int(bins["kept"].to_numpy().sum())
    told = "; ".join(
        f"pass rate {row['pass_rate']:.2f}: {row['kept']} kept, {row['left_out']} left out"
        for row in bins.to_dict("records")
    )
    figures = _in_both_widths(
        lambda width: plot_pass_rate_histogram(bins, band, width),
        "pass-rates",
        f"Histogram of pass rates, {kept} of {len(table)} tasks kept. {told}",
    )
    return PassRates(Chart(figures, downloadable(bins, "pass_rates.csv")), kept, len(table), band)


def exact_match_chart(results: Mapping[str, Any]) -> Chart | None:
    """Held-out EM by the group of questions that shows how hard they are, one bar per policy."""
    group = drawn_group(results)
    if group is None:
        return None
    told = "; ".join(
        f"{row['group']}: "
        + ", ".join(f"{policy.replace('_', ' ')} {number(row[policy])}" for policy in POLICIES)
        for row in group.scores.to_dict("records")
    )
    title = f"exact match by {group.name}"
    figures = _in_both_widths(
        lambda width: plot_exact_match(group.scores, width),
        "exact-match",
        f"Held-out {title}. {told}",
    )
    file_name = f"{title.replace(' ', '_')}.csv"
    return Chart(figures, downloadable(group.scores, file_name), title=title)


def _in_both_widths(
    plot: Callable[[Width], Figure], name: str, description: str
) -> tuple[Markup, Markup]:
    """The figure across the page, and its twin for a phone, of which the page displays one."""
    wide = embed(plot(Width.WIDE), name, description)
    return wide, embed(plot(Width.NARROW), f"{name}-narrow", description)


def _history_chart(
    run: RunDirectory, stage: str, curves: Sequence[Curve], borders: Sequence[int] = ()
) -> Chart | None:
    history = run.table(stage, "history.parquet")
    if history is None or history.empty or "step" not in history:
        return None
    figures = tuple(
        embed(
            plot_curve(history, curve, borders),
            f"{stage}-{curve.column}",
            _told(history, curve, borders),
        )
        for curve in curves
        if curve.column in history and len(measured(history, "step", curve.column).y)
    )
    best_step = run.measured(stage).get("best_step")
    notes = [] if best_step is None else [f"Weights kept: step {best_step}, best on dev questions."]
    if borders:
        notes.append("Dashed lines: tasks were posed there, and another phase began.")
    return Chart(figures, downloadable(history, f"{stage}_history.csv"), " ".join(notes))


def _told(history: pd.DataFrame, curve: Curve, borders: Sequence[int]) -> str:
    steps, values = measured(history, "step", curve.column)
    return (
        f"{curve.title} ({curve.unit}) against optimizer step: {values[0]:.4g} at step "
        f"{steps[0]:.0f}, {values[-1]:.4g} at step {steps[-1]:.0f}, lowest {values.min():.4g}, "
        f"highest {values.max():.4g}."
        + (f" Phases end at steps {', '.join(map(str, borders))}." if borders else "")
    )


def _kept_band(profile: Mapping[str, Any]) -> tuple[float, float] | None:
    band = profile.get("curriculum", {}).get("pass_rate_band")
    return (float(band[0]), float(band[1])) if band else None

"""Figures on the pages of steps: learning curves, and exact match by group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from espalier.records import policy_label
from espalier.records.step_figures import step_figure
from espalier.reporting.comparison import POLICIES, drawn_group
from espalier.reporting.formats import number
from espalier.reporting.histories import history_of, kept_weights, phase_ends
from espalier.reporting.plots import (
    GRPO_CURVES,
    PRESTAGE_CURVES,
    PRETRAINING_CURVES,
    WARM_START_CURVES,
    Curve,
    Table,
    Width,
    downloadable,
    embed,
    plot_curve,
    plot_exact_match,
)
from espalier.reporting.run_directory import RunDirectory
from espalier.reporting.tables import measured


@dataclass(frozen=True, slots=True)
class Chart:
    """Figures shown side by side, and the table they were drawn from."""

    figures: tuple[Markup, ...]
    table: Table
    note: str = ""
    title: str = ""
    meanings: tuple[tuple[str, str, str], ...] = ()
    """Column of the table, what it is, and its unit and denominator."""


def prestage_chart(run: RunDirectory) -> Chart | None:
    """Loss of the tiny policy's browsing pre-stage; None for a given model."""
    return _history_chart(run, "prepare_policy", PRESTAGE_CURVES)


def pretraining_chart(run: RunDirectory) -> Chart | None:
    """Loss of continued pre-training; None if the base policy was passed on unchanged."""
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
    history = history_of(run, stage)
    if history is None:
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
    notes = [kept_weights(run, stage)]
    if phase_ends:
        notes.append("Dashed lines: ends of phases, where self-play proposed new tasks.")
    note = " ".join(filter(None, notes))
    return Chart(figures, downloadable(history, f"{stage}_history.csv"), note)


def _description(history: pd.DataFrame, curve: Curve, phase_ends: Sequence[int]) -> str:
    steps, values = measured(history, "step", curve.column)
    return (
        f"{curve.title} ({curve.unit}) against optimizer step: {values[0]:.4g} at step "
        f"{steps[0]:.0f}, {values[-1]:.4g} at step {steps[-1]:.0f}, lowest {values.min():.4g}, "
        f"highest {values.max():.4g}."
        + (f" Phases end at steps {', '.join(map(str, phase_ends))}." if phase_ends else "")
    )

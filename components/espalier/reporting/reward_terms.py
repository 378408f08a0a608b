"""Terms of the reward against each other: which steps of training are better in none of them.

A term that rises while dev exact match falls is paid for without being earned. Where terms pull in
different directions, no single step is best: the Pareto front is those that no other step beats in
one quantity without losing in another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from espalier.reporting.plots import Table, downloadable
from espalier.reporting.run_directory import RunDirectory

_PREFIX = "reward/"
_SMOOTHED_STEPS = 10
"""A term of one step is the mean of a few hundred attempts: its noise would be the front."""


class TermFront(NamedTuple):
    """The evaluated steps that no other beats, and all of them."""

    front: Table
    everything: Table


def term_front(run: RunDirectory) -> TermFront | None:
    """Dev exact match and terms at evaluated steps; None where a run has no terms to compare."""
    history = run.table("train", "history.parquet")
    if history is None or "dev_em" not in history:
        return None
    points: Any = term_points(history)
    if points.empty or len(points.columns) < 3:
        return None
    on_front = pareto_front(points.drop(columns="step").to_numpy(dtype=float))
    shown = points.assign(on_front=["yes" if kept else "" for kept in on_front])
    return TermFront(
        downloadable(points[on_front], "reward_front.csv"),
        downloadable(shown, "reward_terms.csv"),
    )


def term_points(history: pd.DataFrame) -> pd.DataFrame:
    """Columns `step`, `dev_em` and the mean of each term over the last ten steps.

    One row for each step that was evaluated; more of a term is better. A term that some step lacks
    counts as it is in those that have it.
    """
    table: Any = history  # pandas' own types refuse most selections
    terms = [str(name) for name in table.columns if str(name).startswith(_PREFIX)]
    means = table[terms].rolling(_SMOOTHED_STEPS, min_periods=1).mean()
    named = means.rename(columns={name: name.removeprefix(_PREFIX) for name in terms})
    points: Any = pd.concat([table[["step", "dev_em"]], named], axis=1)
    return points[points["dev_em"].notna()].dropna(axis="columns").reset_index(drop=True)


def pareto_front(values: np.ndarray) -> np.ndarray:
    """Which rows no other row beats: at least as good in all columns, better in one.

    Args:
        values: [N, K], more is better.

    Returns:
        [N] bool.
    """
    at_least_NN = np.all(values[None, :, :] >= values[:, None, :], axis=2)
    better_NN = np.any(values[None, :, :] > values[:, None, :], axis=2)
    return np.logical_not(np.any(np.logical_and(at_least_NN, better_NN), axis=1))

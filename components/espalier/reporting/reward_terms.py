"""Terms of the reward against each other: the steps of training on their Pareto front.

A term that rises while dev exact match falls shows that the policy exploits the reward. If terms
pull in different directions, no single step is best. The Pareto front holds the steps that no other
step beats: none is at least as good in all quantities and better in one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from espalier.reporting.run_directory import RunDirectory
from espalier.reporting.tables import ReportTable, table_of

_PREFIX = "reward/"
_SMOOTHED_STEPS = 10
"""Steps that a term is averaged over. At one step it is the mean of a few hundred attempts, and
its noise would decide the front."""


def term_tables(run: RunDirectory) -> tuple[ReportTable, ...]:
    """Dev exact match and terms at the evaluated steps on the Pareto front, and at all of them.

    () if a run has no terms to compare.
    """
    history = run.table("train", "history.parquet")
    if history is None or "dev_em" not in history:
        return ()
    points: Any = term_points(history)
    if points.empty or len(points.columns) < 3:
        return ()
    on_front = pareto_front(points.drop(columns="step").to_numpy(dtype=float))
    marked = points.assign(on_front=["yes" if kept else "" for kept in on_front])
    return (
        table_of(points[on_front], "Terms of the reward: Pareto front"),
        table_of(marked, "Terms of the reward: all evaluated steps"),
    )


def term_points(history: pd.DataFrame) -> pd.DataFrame:
    """Columns `step`, `dev_em` and the mean of each term over the last ten steps.

    One row per evaluated step; more of a term is better. The mean of a term is over those of the
    ten steps that have it.
    """
    table: Any = history  # pandas' own types refuse most selections
    terms = [str(name) for name in table.columns if str(name).startswith(_PREFIX)]
    means = table[terms].rolling(_SMOOTHED_STEPS, min_periods=1).mean()
    named = means.rename(columns={name: name.removeprefix(_PREFIX) for name in terms})
    points: Any = pd.concat([table[["step", "dev_em"]], named], axis=1)
    return points[points["dev_em"].notna()].dropna(axis="columns").reset_index(drop=True)


def pareto_front(values: np.ndarray) -> np.ndarray:
    """Mask of the rows that no other row beats, at least as good in all columns and better in one.

    Args:
        values: [N, K], more is better.

    Returns:
        [N] bool.
    """
    at_least_NN = np.all(values[None, :, :] >= values[:, None, :], axis=2)
    better_NN = np.any(values[None, :, :] > values[:, None, :], axis=2)
    return np.logical_not(np.any(np.logical_and(at_least_NN, better_NN), axis=1))

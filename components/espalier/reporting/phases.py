"""Phases of training: what the policy did in each, and which tasks self-play posed at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from espalier.reporting.columns import Points, measured, numbers
from espalier.reporting.dataset import CountTable
from espalier.reporting.formats import number, percent, words
from espalier.reporting.run_directory import RunDirectory

COLUMNS = (
    "optimizer steps",
    "pass rate",
    "dev EM at its end",
    "tasks never solved",
    "ordered",
    "posed",
    "refused",
    "kept",
    "mean reward of posing",
)
"""Pass rate: mean over the steps of the phase."""
_NOTHING_POSED = ("",) * 6
"""Of the last phase: it ends with training, and none follows that could draw on posed tasks."""


@dataclass(frozen=True, slots=True)
class PhaseStory:
    """One row a phase, as text by `COLUMNS`, and why posed tasks were refused, by phase."""

    rows: tuple[tuple[str, ...], ...]
    refused: CountTable


def phase_story(run: RunDirectory) -> PhaseStory | None:
    """The tables behind posed/phases.json and the history; None where training had one phase."""
    posings = _posings(run)
    history = run.table("train", "history.parquet")
    if not posings or history is None or history.empty:
        return None
    ordered = run.profile.get("self_play", {}).get("posed_tasks")
    starts = [0, *borders(run)]
    rows = [
        (*_trained(history, first + 1, last), *_posed(posing, ordered))
        for (first, last), posing in zip(pairwise(starts), posings, strict=True)
    ]
    last_step = int(numbers(history, "step").max())
    if last_step > starts[-1]:
        rows.append((*_trained(history, starts[-1] + 1, last_step), *_NOTHING_POSED))
    return PhaseStory(tuple(rows), _refused(posings))


def borders(run: RunDirectory) -> tuple[int, ...]:
    """Optimizer steps after which tasks were posed; none where training had one phase."""
    return tuple(int(posing["step"]) for posing in _posings(run))


def _posings(run: RunDirectory) -> Sequence[Mapping[str, Any]]:
    return run.json("train", "posed/phases.json") or ()


def _trained(history: pd.DataFrame, first: int, last: int) -> tuple[str, str, str]:
    """Steps, pass rate and dev EM of a phase; a dev EM of an earlier step says which."""
    pass_rates = _between(history, "pass_rate", first, last)
    dev = _between(history, "dev_em", first, last)
    told = ""
    if len(dev.y):
        at = int(dev.x[-1])
        told = percent(float(dev.y[-1])) + ("" if at == last else f" (step {at})")
    steps = f"{first} to {last}" if first < last else str(last)
    return steps, percent(float(pass_rates.y.mean())) if len(pass_rates.y) else "", told


def _between(history: pd.DataFrame, column: str, first: int, last: int) -> Points:
    """What the steps of a phase have measured of a column, which may be missing."""
    if column not in history:
        return Points(np.array([]), np.array([]))
    x, y = measured(history, "step", column)
    inside = (x >= first) & (x <= last)
    return Points(x[inside], y[inside])


def _posed(posing: Mapping[str, Any], ordered: int | None) -> tuple[str, ...]:
    counts = (posing["failed"], ordered, posing["posed"], sum(posing["refused"].values()))
    return tuple(number(count) for count in (*counts, posing["kept"], posing["reward"]))


def _refused(posings: Sequence[Mapping[str, Any]]) -> CountTable:
    """Reasons, those first that refused most."""
    totals = Counter[str]()
    for posing in posings:
        totals.update(posing["refused"])
    reasons = sorted(totals, key=lambda reason: (-totals[reason], reason))
    columns = tuple(f"phase {place}" for place in range(1, len(posings) + 1))
    counts = ((r, tuple(posing["refused"].get(r, 0) for posing in posings)) for r in reasons)
    return CountTable("Refused because", columns, tuple((words(r), n) for r, n in counts))

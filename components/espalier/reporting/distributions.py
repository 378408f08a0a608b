"""How long the rows of the data are: questions, demonstrations, each kind of agent text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from espalier.reporting.charts import Chart
from espalier.reporting.columns import numbers
from espalier.reporting.material import Material
from espalier.reporting.plots import Histogram, plot_histogram
from espalier.reporting.svg import downloadable, embed

_MAX_BARS = 24


def length_chart(material: Material | None) -> Chart | None:
    """A histogram for each kind of row that is there, and one table behind them."""
    if material is None:
        return None
    bins = {histogram: length_bins(lengths) for histogram, lengths in _lengths(material) if lengths}
    if not bins:
        return None
    table = pd.concat([found.assign(rows_of=shown.title) for shown, found in bins.items()])
    figures = tuple(
        embed(plot_histogram(found, shown), f"length-{place}", _told(found, shown))
        for place, (shown, found) in enumerate(bins.items())
    )
    columns = ["rows_of", "length", "width", "rows"]
    return Chart(figures, downloadable(table.reindex(columns=columns), "data_lengths.csv"))


def length_bins(lengths: Sequence[int]) -> pd.DataFrame:
    """Count rows by length; lengths that span much share bins of equal width.

    Returns:
        Columns `length` (the least of a bin), `width` (lengths that share it) and `rows`; one row
        a bin, empty bins between others included.
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


def _lengths(material: Material) -> list[tuple[Histogram, list[int]]]:
    found = [
        (
            Histogram(f"{title} questions", "words"),
            [len(task.question.split()) for task in material.tasks.get(split, [])],
        )
        for split, title in (("train", "Training"), ("heldout", "Held-out"))
    ]
    calls = [len(trajectory.tool_results) for trajectory in material.demonstrations]
    found.append((Histogram("Demonstrations", "tool calls"), calls))
    kinds = sorted({text.kind for text in material.texts})
    for kind in kinds:
        words = [len(text.words.split()) for text in material.texts if text.kind == kind]
        found.append((Histogram(f"Texts: {kind}", "words"), words))
    return found


def _told(bins: pd.DataFrame, shown: Histogram) -> str:
    lengths, rows = numbers(bins, "length"), numbers(bins, "rows")
    return (
        f"{shown.title}: {rows.sum():.0f} rows of {lengths[0]:.0f} to "
        f"{lengths[-1] + numbers(bins, 'width')[-1] - 1:.0f} {shown.unit}, most often "
        f"{lengths[int(rows.argmax())]:.0f}."
    )

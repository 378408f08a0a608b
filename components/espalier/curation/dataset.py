"""The dataset as a whole: the mix of kinds, its figures, and the dataset card."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import TypeVar

from espalier.records.folding import words

ItemT = TypeVar("ItemT")


def mixed(
    by_kind: Mapping[str, Sequence[ItemT]], weights: Mapping[str, float], seed: int
) -> dict[str, list[ItemT]]:
    """Return the largest mix whose weighted kinds are in the proportion of their weights.

    Kinds without a weight keep every row; a weighted kind without rows is left out of the
    proportion. Rows stay in their order.
    """
    weighted = {kind: weights[kind] for kind in by_kind if weights.get(kind) and by_kind[kind]}
    scale = min((len(by_kind[kind]) / weight for kind, weight in weighted.items()), default=0.0)
    kept: dict[str, list[ItemT]] = {}
    for kind, rows in by_kind.items():
        count = round(weighted[kind] * scale) if kind in weighted else len(rows)
        places = random.Random(f"{seed}/mix/{kind}").sample(range(len(rows)), count)
        kept[kind] = [rows[place] for place in sorted(places)]
    return kept


def diversity(texts: Iterable[str]) -> dict[str, float]:
    """Number of rows, mean words per row, vocabulary, and the share of distinct word pairs."""
    folded = [words(text) for text in texts]
    pairs = [pair for found in folded for pair in pairwise(found)]
    return {
        "rows": len(folded),
        "mean_words": round(fmean(map(len, folded)), 2) if folded else 0.0,
        "vocabulary": len({word for found in folded for word in found}),
        "distinct_pair_share": round(len(set(pairs)) / len(pairs), 4) if pairs else 0.0,
    }


_OWN = "The user's own documents."
_HEAD = """# Dataset card

Made by `validate` from synthetic tasks and texts. Every row leads back to its documents by
`lineage.jsonl`; every row that was left out stands in `curation.json` with its reason.
"""


def dataset_card(report: Mapping[str, Mapping[str, object]], attribution: str) -> str:
    """Return the card of a curated artifact as Markdown.

    Args:
        report: values by heading and figure, as in curation.json.
        attribution: source and licence of the knowledge.
    """
    parts = [_HEAD]
    for heading, figures in report.items():
        rows = [(name, value) for name, value in figures.items() if not isinstance(value, list)]
        if rows:
            lines = ["| | |", "| --- | ---: |"]
            for name, value in rows:
                lines.append(f"| {_cell(name.replace('_', ' '))} | {_cell(str(value))} |")
            table = "\n".join(lines)
            parts.append(f"\n## {heading.replace('_', ' ').capitalize()}\n\n{table}\n")
    parts.append(f"\n## Sources\n\n{_cell(attribution) or _OWN}\n")
    return "".join(parts)


def _cell(text: str) -> str:
    """Escape text for a cell, as names of rows may come from anywhere."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")

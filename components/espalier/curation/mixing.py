"""Mixing: as many rows of each kind as its weight allows."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

ItemT = TypeVar("ItemT")


def mixed(
    by_kind: Mapping[str, Sequence[ItemT]], weights: Mapping[str, float], seed: int
) -> dict[str, list[ItemT]]:
    """The largest mix whose weighted kinds stand in the proportion of their weights.

    Kinds without a weight keep every row; a weighted kind that has none is left out of the
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

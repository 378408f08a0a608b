"""Cutting a step's rows: minibatches for the optimizer, micro-batches for the memory.

A unit is what must stay together: a row by itself, or the two rows of a preference pair.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from torch import Tensor

from espalier.algorithms.batch import Totals

Unit = tuple[int, ...]
"""Row numbers."""


def minibatches(units: Sequence[Unit], *, count: int, rng: random.Random) -> list[list[Unit]]:
    """Deal `units` in random order into at most `count` parts of one size (the last may be less).

    A part is at least one unit, so few units make fewer parts.
    """
    order = list(units)
    rng.shuffle(order)
    share = -(-len(order) // count)
    return [order[start : start + share] for start in range(0, len(order), share)]


def micro_batches(
    units: Sequence[Unit], lengths: Sequence[int], *, max_tokens: int
) -> list[list[Unit]]:
    """Cut `units` into runs of at most `max_tokens` tokens; like lengths share a run.

    Args:
        units: of one minibatch.
        lengths: tokens of each row of the step.
        max_tokens: a unit that is longer gets a run of its own.
    """

    def tokens(unit: Unit) -> int:
        return sum(lengths[row] for row in unit)

    runs: list[list[Unit]] = []
    used = 0
    for unit in sorted(units, key=tokens):
        if not runs or used + tokens(unit) > max_tokens:
            runs.append([])
            used = 0
        runs[-1].append(unit)
        used += tokens(unit)
    return runs


def rows_of(units: Sequence[Unit]) -> list[int]:
    """The rows of `units`, in their order."""
    return [row for unit in units for row in unit]


def totals(units: Sequence[Unit], loss_mask_BT: Tensor, *, max_tokens: float) -> Totals:
    """Sizes of the minibatch that `units` make.

    Args:
        units: all of the minibatch.
        loss_mask_BT: [B, T] of the step.
        max_tokens: the longest action sequence that is possible, for Dr. GRPO's normaliser.
    """
    rows = rows_of(units)
    lengths_B = loss_mask_BT[rows].sum(dim=1)
    return Totals(
        tokens=max(1.0, float(lengths_B.sum())),
        sequences=max(1.0, float((lengths_B > 0).sum())),
        rows=float(len(rows)),
        max_tokens=float(max_tokens),
        pairs=float(sum(len(unit) == 2 for unit in units)),
    )

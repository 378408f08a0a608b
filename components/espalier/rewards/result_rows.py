"""Compares the rows of a query with the expected rows: InterCode's reward, and an exact match.

InterCode (Yang et al. 2023, arXiv:2306.14898; `SqlEnv.get_reward` of princeton-nlp/intercode at
c3e46d8): the intersection over the union of the rows as texts, times Kendall's tau of the order of
the rows that both have, rounded to two digits. Rows in the opposite order have a negative reward.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence

Row = tuple[Hashable, ...]


def intercode_sql_reward(rows: Sequence[Row] | None, gold: Sequence[Row]) -> float:
    """Return InterCode's reward for the last query's rows, -1 to 1; 0 if it failed (None).

    Equal results get 1, also two empty ones. The order counts only where tau is defined: if only
    one distinct row is common to both, the reward is the overlap, not rounded.
    """
    if rows is None:
        return 0.0
    said, wanted = ([str(row) for row in side] for side in (rows, gold))
    counts, gold_counts = Counter(said), Counter(wanted)
    union = (counts | gold_counts).total()
    if not union:
        return 1.0
    shared = counts & gold_counts
    overlap = shared.total() / union
    tau = kendall_tau(_first(said, shared), _first(wanted, shared))
    return overlap if math.isnan(tau) else round(tau * overlap, 2)


def rows_match(rows: Sequence[Row] | None, gold: Sequence[Row], *, ordered: bool) -> bool:
    """Whether a query returned the gold rows: in their order, or in any.

    Values are compared as numbers and texts, so that 3 is 3.0; columns stand in the gold's order.
    Floats may differ by what another order of the same sum leaves; whole numbers may not. That is
    never half a unit or a cent of a large sum, as long as floats tell these apart.
    """
    if rows is None or len(rows) != len(gold):
        return False
    if list(rows) == list(gold) or (not ordered and Counter(rows) == Counter(gold)):
        return True
    said, wanted = (rows, gold) if ordered else (sorted(rows, key=_key), sorted(gold, key=_key))
    return all(map(_rows_equal, said, wanted))


_RELATIVE, _LEAST, _MOST = 1e-9, 1e-12, 1e-4
_STEPS = 1024
"""Floats of that size between two that are equal: more than sums of a million rows leave."""


def _rows_equal(row: Row, gold: Row) -> bool:
    return len(row) == len(gold) and all(map(_equal, row, gold))


def _equal(value: Hashable, gold: Hashable) -> bool:
    if value == gold:
        return True
    is_calculated = isinstance(value, float) or isinstance(gold, float)
    if not (is_calculated and isinstance(value, int | float) and isinstance(gold, int | float)):
        return False
    said, wanted = _as_float(value), _as_float(gold)
    size = max(abs(said), abs(wanted))
    if math.isinf(size):
        return False
    return abs(said - wanted) <= max(
        _LEAST, min(_RELATIVE * size, max(_MOST, _STEPS * math.ulp(size)))
    )


def _key(row: Row) -> tuple[list[tuple[str, str]], list[float]]:
    """Sorts by texts, then by rounded numbers: nearly equal numbers do not part equal rows."""
    texts = [(type(v).__name__, repr(v)) for v in row if not isinstance(v, int | float)]
    numbers = [_as_float(value) for value in row if isinstance(value, int | float)]
    return texts, [float(f"{number:.9g}") for number in numbers] + numbers


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond all floats
        return math.inf if value > 0 else -math.inf


def _first(rows: Sequence[str], counts: Counter[str]) -> list[str]:
    """Return the rows in their order, of each text at most as many as `counts` says."""
    left = counts.copy()
    kept: list[str] = []
    for row in rows:
        if left[row] > 0:
            left[row] -= 1
            kept.append(row)
    return kept


def kendall_tau(one: Sequence[str], other: Sequence[str]) -> float:
    """Return Kendall's tau-b of two equally long sequences, NaN if either has only one value.

    It uses Knight's algorithm (1966): the pairs that are out of order after sorting by the first
    are counted while the second is merge-sorted.
    """
    assert len(one) == len(other), "the ranks of the same places are compared"
    count = len(one)
    pairs = count * (count - 1) // 2
    ties, other_ties = _tied(one), _tied(other)
    if pairs in (ties, other_ties):
        return math.nan
    ordered = sorted(zip(one, other, strict=True))
    discordant, _ = _inversions([second for _, second in ordered])
    both_tied = _tied(ordered)
    concordant_less_discordant = pairs - ties - other_ties + both_tied - 2 * discordant
    tau = concordant_less_discordant / math.sqrt(pairs - ties) / math.sqrt(pairs - other_ties)
    return max(-1.0, min(1.0, tau))


def _tied(values: Sequence[Hashable]) -> int:
    """Return the number of pairs of equal values."""
    return sum(number * (number - 1) // 2 for number in Counter(values).values())


def _inversions(values: list[str]) -> tuple[int, list[str]]:
    """Return the number of pairs in the wrong order, and the sorted values."""
    if len(values) < 2:
        return 0, values
    middle = len(values) // 2
    left_count, left = _inversions(values[:middle])
    right_count, right = _inversions(values[middle:])
    count, merged, place = left_count + right_count, list[str](), 0
    for value in right:
        while place < len(left) and left[place] <= value:
            merged.append(left[place])
            place += 1
        count += len(left) - place
        merged.append(value)
    return count, merged + left[place:]

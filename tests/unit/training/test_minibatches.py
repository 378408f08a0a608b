import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from espalier.training.rl.rows import micro_batches, minibatches, rows_of, totals


@given(rows=st.integers(1, 60), count=st.integers(1, 8), paired=st.booleans())
def test_every_unit_is_dealt_once_in_parts_of_one_size(rows, count, paired):
    units = [(2 * n, 2 * n + 1) if paired else (n,) for n in range(rows)]
    parts = minibatches(units, count=count, rng=random.Random(0))
    assert sorted(unit for part in parts for unit in part) == units
    assert len(parts) <= count
    assert len({len(part) for part in parts[:-1]}) <= 1


@given(lengths=st.lists(st.integers(1, 50), min_size=2, max_size=40), limit=st.integers(10, 120))
def test_micro_batches_stay_within_their_tokens_and_keep_units_whole(lengths, limit):
    units = [(n, n + 1) for n in range(0, len(lengths) - 1, 2)]
    runs = micro_batches(units, lengths, max_tokens=limit)
    assert sorted(unit for run in runs for unit in run) == units
    for run in runs:
        assert sum(lengths[row] for row in rows_of(run)) <= limit or len(run) == 1


def test_totals_count_the_whole_minibatch_and_rows_without_loss_apart():
    mask = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0], [1, 1, 1]]).bool()
    found = totals([(0, 1), (2, 3)], mask, max_tokens=30)
    assert (found.tokens, found.sequences, found.rows, found.pairs) == (6, 3, 4, 2)
    assert found.max_tokens == 30
    assert totals([(1,)], mask, max_tokens=30).tokens == 1  # nothing is divided by zero

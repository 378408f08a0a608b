"""Pages of rows that share a beginning, leave, and make room."""

import numpy as np

from espalier.rollout.engines.pages import PAGE, PageTable


def test_a_shared_prefix_is_held_until_its_last_slot_leaves():
    table = PageTable()
    table.extend(np.array([0]), np.array([3 * PAGE + 5]))
    copies = table.fork(0, [1, 2])
    assert len(copies.targets) == 2
    assert table.live == 3 + 3
    table.release(0)
    table.release(1)
    assert table.live == 4
    table.release(2)
    assert table.live == 0


def test_pages_that_were_given_back_are_used_before_new_ones():
    table = PageTable()
    table.extend(np.array([0, 1]), np.array([3 * PAGE, PAGE]))
    table.release(0)
    table.extend(np.array([2]), np.array([3 * PAGE]))
    assert table.extent == 4


def test_compaction_leaves_no_gap():
    table = PageTable()
    table.extend(np.arange(8), np.full(8, 2 * PAGE))
    for slot in (0, 2, 4, 6):
        table.release(slot)
    table.compact()
    assert table.extent == table.live == 8

"""Rows of queries against gold rows."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.rewards.result_rows import intercode_sql_reward, kendall_tau, rows_match
from tests.golden_cases import golden_family

REWARDS = golden_family("reward", topic="intercode_sql")


def rows_of(given):
    return None if given is None else [tuple(row) for row in given]


def test_rewards_equal_those_of_intercodes_own_code():
    assert len(REWARDS) == 311
    for case in REWARDS:
        rows, gold = (rows_of(case["inputs"][side]) for side in ("rows", "gold"))
        expected = pytest.approx(case["expected"], rel=0, abs=case["tolerance"]["atol"])
        assert intercode_sql_reward(rows, gold) == expected, case["name"]


def test_returning_everything_is_worth_its_overlap_alone():
    gold = [("rex",)]
    everything = [("rex",), ("ada",), ("bo",), ("kim",)]
    assert intercode_sql_reward(everything, gold) == 0.25
    assert not rows_match(everything, gold, ordered=False)
    assert intercode_sql_reward([("rex",)] * 4, gold) == 0.25, "nor does repeating it help"


MATCHES = (
    ([(1,), (2,)], [(2,), (1,)], False, True), ([(1,), (2,)], [(2,), (1,)], True, False),
    ([(3,)], [(3.0,)], True, True), ([("3",)], [(3,)], False, False), ([], [], True, True),
    ([(1,), (1,)], [(1,)], False, False), (None, [], False, False),
    ([(None,)], [(None,)], False, True), ([(1, 2)], [(2, 1)], False, False),
    ([(0.1 + 0.2,)], [(0.3,)], True, True), ([(0.301,)], [(0.3,)], True, False),
    ([(0.1 + 0.2 - 0.3,)], [(0,)], True, True), ([(10**17 + 1,)], [(10**17,)], True, False),
    ([(0.30000000000000004, "a"), (0.3, "b")], [(0.3, "a"), (0.3, "b")], False, True),
    ([(0.30000000000000004, "a"), (0.3, "b")], [(0.3, "b"), (0.3, "a")], True, False),
    ([(0.3, None), (1, "x")], [(1.0, "x"), (0.1 + 0.2, None)], False, True),
    ([(0.1 + 0.2,), (0.1 + 0.2,)], [(0.3,), (0.4,)], False, False),
    ([(0.3, 1)], [(0.3,)], True, False),
    ([(math.inf,)], [(math.inf,)], True, True), ([(math.inf,)], [(1e308,)], True, False),
    ([(10**400,)], [(math.inf,)], True, False), ([(10**400,)], [(1.0,)], True, False),
    ([(b"a", 0.3)], [("a", 0.3)], True, False),
)  # fmt: skip


LARGE = (
    (1000000001, 1000000000.5, False), (1000000001.0, 1000000000.5, False),
    (1000000000.50, 1000000000.49, False), (-1000000001, -1000000000.5, False),
    (2500000.01, 2500000, False), (12345678.9, 12345679, False), (1e10 + 0.5, 10**10, False),
    (1e12 + 1, 1e12, False), (3_000_000_000.25, 3_000_000_000, False), (1e7, 10_000_000.005, False),
    (999_999_999, 999_999_999.5, False), (1000.000002, 1000.0, False), (1.00000001, 1.0, False),
    (2_147_483_647.5, 2_147_483_648, False), (1e9 + 1e-5, 10**9, True),
    (1000.0000001, 1000, True), (4.35 * 100, 435, True), (2.9999999999999996, 3, True),
    (1e15 + 2, 10**15, True), (math.fsum([0.1] * 10**6), sum([0.1] * 10**6), True),
    (sum(range(10**6)) * 0.01, 4999995000.0, True), (1e22, 10**22, True),
)  # fmt: skip


def test_sums_may_differ_in_their_last_bits_in_any_order():
    rows, gold = [(0.1 + 0.2, 2), (0.3, 1)], [(0.3, 2), (0.1 + 0.2, 1)]
    assert rows_match(rows, gold, ordered=False)
    assert not rows_match(rows, [(0.3, 2), (0.1 + 0.2, 3)], ordered=False)


@pytest.mark.parametrize(("value", "gold", "expected"), LARGE)
def test_large_numbers_differ_by_rounding_alone(value, gold, expected):
    for rows in ([(value,)], [(gold,)]), ([(gold,)], [(value,)]):
        assert rows_match(*rows, ordered=True) is rows_match(*rows, ordered=False) is expected


@pytest.mark.parametrize(("rows", "gold", "ordered", "expected"), MATCHES)
def test_a_match_is_of_values_and_order(rows, gold, ordered, expected):
    assert rows_match(rows, gold, ordered=ordered) is expected


def slow_tau(one, other):
    """Tau-b by its definition, pair by pair."""
    pairs = [(i, j) for i in range(len(one)) for j in range(i)]
    signs = [
        ((one[i] > one[j]) - (one[i] < one[j]), (other[i] > other[j]) - (other[i] < other[j]))
        for i, j in pairs
    ]
    first, second = (sum(sign[side] != 0 for sign in signs) for side in (0, 1))
    if not first or not second:
        return math.nan
    return sum(a * b for a, b in signs) / math.sqrt(first * second)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abcd")), max_size=12))
def test_tau_is_what_its_definition_says(pairs):
    one, other = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    expected = slow_tau(one, other)
    assert kendall_tau(one, other) == pytest.approx(expected, nan_ok=True)

import contextlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_environments.python_math.arithmetic import (
    OPERATIONS,
    Calculation,
    Change,
    calculation_split,
)


def chain(start, *changes):
    return Calculation(start, tuple(Change(label, numbers) for label, *numbers in changes))


numbers = st.integers(min_value=2, max_value=40)
changes = st.sampled_from(sorted(OPERATIONS)).flatmap(
    lambda label: st.lists(
        numbers, min_size=OPERATIONS[label].num_numbers, max_size=OPERATIONS[label].num_numbers
    ).map(lambda found: Change(label, tuple(found)))
)
chains = st.builds(Calculation, numbers, st.lists(changes, min_size=1, max_size=4).map(tuple))


def test_a_chain_knows_its_values_its_plan_and_its_program():
    story = chain(37, ("add", 14), ("times", 3), ("take groups", 4, 6))
    assert story.values == (37, 51, 153, 129)
    assert story.plan == "37 , 14 add , 3 times , 4 6 take groups"
    assert story.program == "x = 37\nx += 14\nx *= 3\nx -= 4 * 6\nprint(x)"


@given(chains)
def test_the_program_prints_the_last_value(story):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(story.program, {})
    assert printed.getvalue().strip() == str(story.values[-1])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (chain(37, ("add", 14)), chain(14, ("add", 37))),
        (chain(37, ("add", 14), ("take", 5)), chain(37, ("take", 5), ("add", 14))),
        (chain(37, ("add groups", 4, 6)), chain(37, ("add groups", 6, 4))),
        (chain(37, ("add groups", 4, 6)), chain(37, ("add", 24))),
        (chain(6, ("times", 7), ("add", 1)), chain(7, ("times", 6), ("add", 1))),
    ],
)
def test_equal_calculations_are_one_query_and_lie_in_one_split(one, other):
    assert one.canonical == other.canonical
    assert calculation_split(one) == calculation_split(other)


def test_other_calculations_are_other_queries():
    add, times = ("add", 14), ("times", 3)
    several = [(add,), (("take", 14),), (add, times), (times, add)]
    assert len({chain(37, *changes).canonical for changes in several}) == len(several)


@given(chains)
def test_equal_queries_have_equal_results(story):
    other = Calculation(story.start, story.changes[::-1])
    if other.canonical == story.canonical:
        assert other.values[-1] == story.values[-1]

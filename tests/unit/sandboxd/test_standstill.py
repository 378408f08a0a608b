"""What looks at the threads of a session say of its standing still."""

import pytest

from sandboxd.kernel import Activity
from sandboxd.standstill import Standstill

RUNS, SLEEPS, UNKNOWN, ENDED = Activity("R", 5), Activity("S", 5), Activity("?"), Activity("Z")
STOPPED, STOPPED_AGAIN = Activity("T", 5), Activity("T", 7)
WAITS, WAITS_AGAIN = Activity("D", 5), Activity("D", 7)
ONE, OTHER = (7, 7), (8, 8)


def broken_by(*looks):
    """The number of the first look, from 1, that finds a session broken; None if all are well."""
    standstill = Standstill()
    for number, threads in enumerate(looks, start=1):
        standstill.look(threads if isinstance(threads, dict) else {ONE: threads})
        if standstill.is_broken:
            return number
    return None


@pytest.mark.parametrize(
    "moving",
    [
        *(STOPPED_AGAIN, RUNS, SLEEPS, WAITS, ENDED, {}),
        *({ONE: STOPPED, OTHER: state} for state in (STOPPED, ENDED, RUNS)),
        {OTHER: STOPPED},
    ],
)
def test_what_has_stopped_must_not_change(moving):
    assert broken_by(STOPPED, STOPPED, moving, STOPPED, STOPPED) == 3


@pytest.mark.parametrize("beside", [RUNS, WAITS])
def test_what_has_stopped_stays_so_beside_others(beside):
    looks = [{ONE: beside, OTHER: state} for state in (STOPPED, STOPPED, STOPPED_AGAIN)]
    assert broken_by(*looks) == 3


@pytest.mark.parametrize("state", [STOPPED, Activity("T"), WAITS, ENDED])
def test_what_never_changes_stands_still(state):
    assert broken_by(*[state] * 1000) is None


@pytest.mark.parametrize("state", [RUNS, SLEEPS, UNKNOWN])
def test_what_runs_has_some_looks_to_stop(state):
    assert broken_by(*[state] * 49, *[STOPPED] * 9) is None
    assert broken_by(*[state] * 60) == 51


@pytest.mark.parametrize("state", [RUNS, WAITS, STOPPED, ENDED])
def test_a_chain_of_programs_has_no_more_looks_than_one(state):
    assert broken_by(*({(number, number): state} for number in range(60))) == 51


def test_what_forks_or_kills_before_it_stops_is_well():
    both, parent = {ONE: STOPPED, OTHER: STOPPED}, {ONE: RUNS, OTHER: STOPPED}
    assert broken_by(RUNS, parent, both, both) is None
    assert broken_by(parent, parent, STOPPED, STOPPED) is None
    assert broken_by(parent, parent, {ONE: STOPPED, OTHER: ENDED}, STOPPED, STOPPED) is None


def test_a_wait_may_end_in_a_stop_late():
    assert broken_by(*[WAITS] * 100, WAITS_AGAIN, RUNS, *[STOPPED_AGAIN] * 100) is None


@pytest.mark.parametrize("other", [WAITS_AGAIN, RUNS, STOPPED])
def test_what_is_different_each_time_ends(other):
    assert broken_by(*[WAITS, other] * 100) == 51


def test_only_a_wait_may_take_long():
    standstill = Standstill()
    assert not standstill.was_seen
    for threads, moving, may_take_long in (
        ({ONE: RUNS, OTHER: WAITS}, [ONE, OTHER], False),
        ({ONE: STOPPED, OTHER: WAITS}, [ONE], False),
        ({ONE: STOPPED, OTHER: WAITS_AGAIN}, [OTHER], True),
        ({ONE: STOPPED, OTHER: WAITS_AGAIN}, [], True),
    ):
        standstill.look(threads)
        assert (standstill.moving, standstill.may_take_long) == (moving, may_take_long)
    assert standstill.was_seen
    assert not standstill.is_broken

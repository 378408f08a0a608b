"""What looks at the threads of a session say of its standing still."""

import pytest

from sandboxd.kernel import Thread
from sandboxd.standstill import Standstill

RUNS, SLEEPS, UNKNOWN = Thread("R", 5), Thread("S", 5), Thread("?")
STOPPED, STOPPED_AGAIN, STOPPED_LATER = Thread("T", 5), Thread("T", 7), Thread("T", 5, ticks=1)
WAITS, WAITS_AGAIN = Thread("D", 5), Thread("D", 7)
ONE, OTHER = (7, 7), (7, 8)


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
        *(STOPPED_AGAIN, STOPPED_LATER, RUNS, SLEEPS, WAITS, {}),
        {ONE: STOPPED, OTHER: STOPPED},
        {OTHER: STOPPED},
    ],
)
def test_what_has_stopped_must_not_change(moving):
    assert broken_by(STOPPED, STOPPED, moving, STOPPED) == 3


@pytest.mark.parametrize("beside", [RUNS, WAITS])
def test_a_stopped_thread_stays_so_beside_a_moving_one(beside):
    looks = [{ONE: beside, OTHER: STOPPED}, {ONE: WAITS, OTHER: STOPPED_AGAIN}]
    assert broken_by(*looks) == 2


@pytest.mark.parametrize("state", [STOPPED, Thread("t", 5), Thread("T"), WAITS])
def test_what_never_changes_stands_still(state):
    assert broken_by(*[state] * 1000) is None


@pytest.mark.parametrize("state", [RUNS, SLEEPS, UNKNOWN])
def test_what_runs_has_some_looks_to_stop(state):
    assert broken_by(*[state] * 50, STOPPED, STOPPED) is None
    assert broken_by(*[state] * 60) == 51


def test_what_forks_before_it_stops_stands_still():
    both = {ONE: STOPPED, OTHER: STOPPED}
    assert broken_by(RUNS, {ONE: RUNS, OTHER: STOPPED}, both, both) is None
    assert broken_by({ONE: RUNS, OTHER: STOPPED}, STOPPED, STOPPED) is None, "it killed its child"


def test_a_wait_may_end_in_a_stop_late():
    assert broken_by(*[WAITS] * 100, WAITS_AGAIN, RUNS, *[STOPPED_AGAIN] * 100) is None


@pytest.mark.parametrize("other", [WAITS_AGAIN, RUNS])
def test_who_waits_anew_each_time_ends(other):
    assert broken_by(*[WAITS, other] * 100) == 51


def test_a_look_is_close_to_the_next_while_something_runs():
    standstill = Standstill()
    assert not standstill.was_seen
    for threads, moving, is_running in (
        ({ONE: RUNS, OTHER: WAITS}, [ONE, OTHER], True),
        ({ONE: STOPPED, OTHER: WAITS_AGAIN}, [OTHER], False),
        ({ONE: STOPPED, OTHER: WAITS_AGAIN}, [], False),
    ):
        standstill.look(threads)
        assert (standstill.moving, standstill.is_running) == (moving, is_running)
    assert standstill.was_seen

"""What looks at the processes of a session say of its standing still."""

import pytest

from sandboxd import standstill
from sandboxd.standstill import Standstill

RUNS, SLEEPS, UNKNOWN = ("R", 5), ("S", 5), ("?", 0)
STOPPED, STOPPED_AGAIN = ("T", 5), ("T", 7)
WAITS, WAITS_AGAIN = ("D", 5), ("D", 7)


@pytest.fixture
def looks(monkeypatch):
    """Looks at one process at times after it was told to stop; what each of them says."""

    def look(*seen):
        now_s = [0.0]
        monkeypatch.setattr(standstill.time, "monotonic", lambda: now_s[0])
        watch, said = Standstill(), []
        for at_s, state in seen:
            now_s[0] = at_s
            states = state if isinstance(state, dict) else {7: state}
            said.append((watch.is_broken_by(states), watch.is_complete))
        return said

    return look


@pytest.mark.parametrize(
    "moving", [STOPPED_AGAIN, RUNS, SLEEPS, WAITS, {}, {7: STOPPED, 8: STOPPED}]
)
def test_what_has_stopped_must_not_change(looks, moving):
    assert [broken for broken, _ in looks((0.1, STOPPED), (0.2, moving))] == [False, True]


@pytest.mark.parametrize("state", [STOPPED, ("t", 5), ("T", 0), ("Z", 5)])
def test_what_has_stopped_is_still_for_ever(looks, state):
    assert looks((0.1, state), (9.0, state), (900.0, state)) == [(False, True)] * 3


@pytest.mark.parametrize("state", [RUNS, SLEEPS, UNKNOWN])
def test_what_runs_has_a_moment_to_stop(looks, state):
    assert looks((0.1, state), (0.9, state)) == [(False, False)] * 2
    assert looks((0.1, state), (1.1, state)) == [(False, False), (True, False)]
    assert looks((0.1, state), (0.9, STOPPED), (2.0, STOPPED))[1:] == [(False, True)] * 2


def test_what_forks_before_it_stops_stands_still(looks):
    both = {7: STOPPED, 8: STOPPED}
    assert looks((0.1, RUNS), (0.2, both), (9.0, both))[1:] == [(False, True)] * 2


def test_what_waits_all_the_time_stands_still(looks):
    said = looks((0.1, WAITS), (0.2, WAITS), (900.0, WAITS), (901.0, STOPPED), (999.0, STOPPED))
    assert said == [(False, False)] + [(False, True)] * 4


@pytest.mark.parametrize("again", [WAITS_AGAIN, RUNS])
def test_what_comes_back_from_the_kernel_stops_soon(looks, again):
    assert looks((0.1, WAITS), (2.0, again), (2.1, STOPPED))[1:] == [(False, False), (False, True)]
    assert looks((0.1, WAITS), (2.0, again), (2.1, RUNS), (2.2, RUNS))[-1] == (True, False)


@pytest.mark.parametrize("states", [[WAITS, WAITS_AGAIN], [WAITS, RUNS]])
def test_what_may_wait_anew_each_time_ends(looks, states):
    seen = [(number / 10, states[number % len(states)]) for number in range(1, 330)]
    broken = [is_broken for is_broken, _ in looks(*seen)]
    assert seen[broken.index(True)][0] == pytest.approx(30.1)

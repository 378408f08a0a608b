"""Answers are compared in processes, each within a time of its own."""

import os
import signal
import threading
from pathlib import Path

import pytest

from espalier.rewards.comparing import Comparer, ComparerError, Comparers
from espalier.rewards.swe_rl import patch_likeness

ENDLESS = ({"a.py": "ab" * 10_000}, {"a.py": "ba" * 10_000})
GOLD, PATCH = {"a.py": "-x\n+y"}, {"a.py": "-x\n+z"}
ENDLESS_NUMBER = r"\boxed{\int_0^1 x^{x^{x^x}} dx}"


def children():
    """Ids of the processes of this one."""
    return {
        int(one)
        for path in Path("/proc/self/task").glob("*/children")
        for one in path.read_text().split()
    }


@pytest.fixture
def comparer():
    comparer = Comparer("patch", within_s=1)
    yield comparer
    comparer.close()


def test_patches_are_worth_what_they_are_in_this_process(comparer):
    likeness = patch_likeness(GOLD, PATCH).reward
    assert comparer.compare(None, GOLD, PATCH) == likeness
    before, gold, after = {"a.py": "x\n"}, {"a.py": "y\n"}, {"a.py": "z\n"}
    assert comparer.compare(before, gold, after) == pytest.approx(likeness, abs=0.3)
    assert comparer.compare(None, {"a.py": "\ud800"}, {"a.py": "\ud800"}) == 1.0
    long = {"a.py": "x\n" * 1_000_000}
    assert comparer.compare(long, long, long) == 0.0, "neither changes a line"


def test_a_patch_that_takes_long_to_compare_is_not_compared(comparer):
    assert comparer.compare(None, *ENDLESS) is None
    assert comparer.compare(None, GOLD, PATCH), "another process is started"


@pytest.mark.parametrize(
    "sides", [(None, {}), (None, {"a": 1}, {"a": 2}), ({}, [], {"a": "b"}), (), ("a", "b", "c")]
)
def test_what_cannot_be_compared_is_none_and_ends_nothing(comparer, sides):
    before = children()
    assert comparer.compare(*sides) is None
    (pid,) = children() - before
    assert comparer.compare(None, GOLD, PATCH)
    assert pid in children()


def test_a_process_killed_from_outside_compares_again(comparer):
    before = children()
    comparer.compare(None, GOLD, PATCH)
    for sign in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP):
        (pid,) = children() - before
        os.kill(pid, sign)
        assert comparer.compare(None, GOLD, PATCH)


def test_a_process_that_is_always_killed_is_an_error(comparer):
    before, done = children(), threading.Event()

    def kill():
        while not done.wait(0.02):
            for pid in children() - before:
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(ComparerError):
            comparer.compare(None, *ENDLESS)
    finally:
        done.set()
        killer.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "slow", "quick", "found"),
    [
        ("patch", (None, *ENDLESS), (None, GOLD, GOLD), 1.0),
        ("math", (ENDLESS_NUMBER, r"\boxed{2}"), (r"\boxed{\frac{2}{4}}", r"\boxed{0.5}"), True),
    ],
)
def test_slow_answers_lose_none_of_their_neighbours(kind, slow, quick, found):
    comparers, results = Comparers(kind, within_s=1), {}

    def ask(number):
        *first, last = quick if number == 3 else slow
        if number != 3:  # another answer each time: a known one is not compared again
            last = last + " " * number if kind == "math" else {**last, f"{number}.py": "x"}
        results[number] = comparers.compare(*first, last)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    comparers.close()
    assert results == {0: None, 1: None, 2: None, 3: found}


def test_a_result_is_kept_for_the_same_answer():
    comparers = Comparers("patch", within_s=1)
    before = children()
    assert comparers.compare(None, *ENDLESS) is None
    comparers.close()
    assert comparers.compare(None, *ENDLESS) is None
    assert children() == before, "no process is started"

"""Ranks that hang are named: one that does not come, one that is stopped, rank 0 itself."""

import re
import threading
import time

import pytest

from espalier.rollout import waits
from espalier.rollout.waits import exit_if_hung
from espalier.training import rank_watch
from espalier.training.parallel import Position, Processes
from espalier.training.rank_watch import RankWatch, ranks_watched
from tests.integration.waiting import wait_until


class Store(dict):
    """A key-value store as torch's; one that is down raises."""

    is_down = False

    def set(self, key, value):
        if self.is_down:
            raise RuntimeError("no answer")
        self[key] = value.encode()

    def get(self, key):
        return self[key]

    def check(self, keys):
        return all(key in self for key in keys)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(rank_watch, "_LISTENS_FOR_S", 0.0)


def watching(processes, store, limit_s):
    return RankWatch(processes, lambda: store, limit_s)


def at(rank, number, *, inside_for_s=None, count=3):
    """A rank that has been in its collective operation for so long, or is at work after it."""
    processes = Processes(rank, count)
    since_s = time.monotonic() - (inside_for_s or 0.0)
    processes.position = Position(number, "a sum", inside_for_s is not None, since_s)
    return processes


class Beating(Store):
    """The other ranks beat between two looks."""

    def __init__(self, places):
        super().__init__()
        self.places = places
        self.beats = 0

    def get(self, key):
        self.beats += 1
        number, place = self.places[key]
        return f"{self.beats}/{number}/{place}".encode()

    def check(self, keys):
        return all(key in self.places for key in keys)


def test_a_rank_that_does_not_come_is_named():
    store = Beating({"at/1": (7, "in a sum"), "at/2": (6, "at work after a broadcast by rank 0")})
    said = watching(at(0, 7, inside_for_s=5.0), store, 4.0).look()
    assert re.match(r"rank 0 of 3 .* 5 s in a sum .*\b7\b.*rank 2 .*broadcast by rank 0", said)


def test_a_rank_that_is_stopped_or_never_there_is_named():
    stopped = Store({"at/1": b"9/7/in a sum", "at/2": b"9/6/at work after a sum"})
    for store in (stopped, Beating({"at/1": (7, "in a sum")})):
        said = watching(at(0, 7, inside_for_s=5.0), store, 4.0).look()
        assert "rank 2 has not reported" in said
    assert "rank 1" not in said


def test_a_silent_rank_is_named_while_rank_zero_works():
    silent = watching(at(0, 7, count=2), Store({"at/1": b"9/7/in a sum"}), 0.05)
    beating = watching(at(0, 7, count=2), Beating({"at/1": (6, "at work")}), 0.05)
    assert silent.look() is beating.look() is None
    time.sleep(0.1)
    assert beating.look() is None
    assert "rank 1 has not reported" in silent.look()


def test_a_silent_rank_is_logged_before_the_limit(monkeypatch, caplog):
    """All ranks waited in silence, health checks alone in the log (miles#574)."""
    monkeypatch.setattr(rank_watch, "_SAID_AFTER_S", 0.05)
    last = Store({"at/1": b"9/7/in a sum, step 74"})
    watch = watching(at(0, 7, inside_for_s=0.0, count=2), last, 5400.0)
    for _ in range(4):
        assert watch.look() is None
        time.sleep(0.03)
    (line,) = caplog.messages
    assert re.match(r"rank 1 has not reported: .*in a sum, step 74; .* 5400 s", line)
    last["at/1"] = b"10/7/in a sum, step 74"  # it goes on, and stops again
    for _ in range(4):
        watch.look()
        time.sleep(0.03)
    assert len(caplog.messages) == 2


def test_a_first_rank_that_is_silent_is_logged(monkeypatch, caplog):
    store = Store()
    store.is_down = True
    for waited_s, lines in ((29.0, 0), (31.0, 1)):
        assert watching(at(1, 7, inside_for_s=waited_s), store, 5400.0).look() is None
        assert len(caplog.messages) == lines


def test_a_report_names_the_step():
    store, processes = Store(), at(1, 7, inside_for_s=1.0)
    processes.step = 74
    watching(processes, store, 4.0).look()
    assert store["at/1"].endswith(b"/7/in a sum, step 74")


def test_rank_zero_speaks_before_the_others():
    places = {f"at/{rank}": (6, "at work after a sum") for rank in range(3)}
    early, late = (
        watching(at(1, 7, inside_for_s=seconds), Beating(places), 4.0).look() for seconds in (5, 15)
    )
    assert early is None
    assert "rank 0 has not reached" in late


def test_rank_zero_that_does_not_answer_is_named():
    store = Store()
    store.is_down = True
    assert watching(at(1, 7), store, 4.0).look() is None
    said = watching(at(1, 7, inside_for_s=15.0), store, 4.0).look()
    assert said.startswith("rank 1 of 3")
    assert "rank 0 does not answer" in said


def test_a_first_rank_that_never_answers_is_named(monkeypatch):
    """A stopped process answers no request, and refuses none."""
    monkeypatch.setattr(rank_watch, "_RANK_ZERO_FIRST_S", 0.1)
    goes_on = threading.Event()

    class Stopped(Store):
        def check(self, keys):
            return goes_on.wait(60) and False

    watch = watching(at(1, 7, inside_for_s=5.0), Stopped(), 4.0)
    assert watch.unanswered() is None
    looking = threading.Thread(target=watch.look)
    looking.start()
    time.sleep(0.2)
    assert "7): rank 0 does not answer" in watch.unanswered()
    goes_on.set()
    looking.join()
    assert watch.unanswered() is None


def test_a_first_rank_stopped_before_it_was_asked_is_named(monkeypatch):
    """It accepts no connection either: the kernel does, and nobody reads."""
    monkeypatch.setattr(rank_watch, "_RANK_ZERO_FIRST_S", 0.1)
    monkeypatch.setattr(waits, "_LEAVES_WITHIN_S", 0.1)
    goes_on, connecting = threading.Event(), threading.Event()

    def connect():
        connecting.set()
        goes_on.wait(60)
        return Store()

    watch = RankWatch(at(1, 7, inside_for_s=5.0), connect, 4.0)
    with exit_if_hung(watch.look, every_s=0.01):
        assert connecting.wait(30)
        time.sleep(0.2)
        assert "7): rank 0 does not answer" in watch.unanswered()
    goes_on.set()


def test_a_store_that_refuses_is_asked_again(monkeypatch):
    monkeypatch.setattr(rank_watch, "BEAT_S", 0.01)
    store, refusals = Store(), [RuntimeError("no answer")] * 2

    def connect():
        if refusals:
            raise refusals.pop()
        return store

    with ranks_watched(Processes(0, 2), connect, limit_s=60.0, end_workers=lambda: None):
        wait_until(lambda: "at/0" in store, within_s=30)

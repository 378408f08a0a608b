"""Spans of an attempt: no second is counted twice, and nothing is measured outside of one."""

import contextvars
import threading

import pytest

from espalier.records.spans import SpanLog, measured, next_turn


class Clock:
    """Seconds that a test sets."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def passes(clock, seconds):
    clock.now += seconds


def test_a_span_has_its_turn_and_seconds_from_the_beginning(clock):
    with SpanLog(clock).recording() as log:
        with measured("waiting"):
            passes(clock, 1)
        next_turn()
        with measured("sampling"):
            passes(clock, 2)
        with measured("tools"):
            passes(clock, 4)
        next_turn()
        with measured("sampling"):
            passes(clock, 8)
    assert log.spans == (
        ("waiting", 0, 1, None), ("sampling", 1, 3, 0), ("tools", 3, 7, 0), ("sampling", 7, 15, 1),
    )  # fmt: skip


def test_waiting_within_a_call_is_taken_out_of_it(clock):
    with SpanLog(clock).recording() as log, measured("tools"):
        passes(clock, 1)
        with measured("waiting"):
            passes(clock, 2)
        passes(clock, 4)
    assert [span[:3] for span in log.spans] == [("tools", 0, 1), ("waiting", 1, 3), ("tools", 3, 7)]


def test_calls_of_a_step_are_measured_one_by_one(clock):
    with SpanLog(clock).recording() as log, measured("tools"):
        for seconds in (1, 2):
            with measured("tools"):
                passes(clock, seconds)
        passes(clock, 0.5)
    assert [span[:3] for span in log.spans] == [("tools", 0, 1), ("tools", 1, 3)]


def fails(clock):
    with measured("scoring"):
        passes(clock, 3)
        raise KeyError


def test_an_error_ends_a_span(clock):
    with SpanLog(clock).recording() as log, pytest.raises(KeyError):
        fails(clock)
    assert [span[:3] for span in log.spans] == [("scoring", 0, 3)]


def test_a_call_in_a_thread_is_measured_too(clock):
    def call():
        with measured("tools"):
            passes(clock, 2)

    with SpanLog(clock).recording() as log:
        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: context.run(call))
        thread.start()
        thread.join()
    assert [span.kind for span in log.spans] == ["tools"]


def test_nothing_is_measured_outside_of_an_attempt(clock):
    log = SpanLog(clock)
    next_turn()
    with measured("tools"):
        passes(clock, 1)
    assert log.spans == ()


def test_a_wait_of_no_time_is_none(clock):
    with SpanLog(clock).recording() as log, measured("scoring"):
        passes(clock, 1e-5)
        with measured("waiting"):
            passes(clock, 1e-5)
        passes(clock, 1)
    assert [span.kind for span in log.spans] == ["scoring"]

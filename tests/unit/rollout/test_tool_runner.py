import asyncio
import threading
import time

import pytest

from espalier.environments.losses import CallTimeoutError
from espalier.rollout.episode import ToolRunner


def _run_all(calls, **settings):
    async def run():
        tools = ToolRunner(**{"workers": 2, "timeout_s": 5.0} | settings)
        return await asyncio.gather(*(tools.run(call) for call in calls), return_exceptions=True)

    return asyncio.run(run())


def test_calls_without_workers_run_where_the_loop_runs():
    names = _run_all([lambda: threading.current_thread()] * 2, workers=0)
    assert names == [threading.main_thread()] * 2


def test_slow_calls_run_side_by_side():
    together = threading.Barrier(2, timeout=20)
    assert sorted(_run_all([together.wait, together.wait])) == [0, 1]


def test_at_most_as_many_calls_as_workers_run_concurrently():
    running, most = [], []

    def call():
        running.append(1)
        most.append(len(running))
        time.sleep(0.01)
        running.pop()

    _run_all([call] * 6, workers=2)
    assert max(most) <= 2


def test_a_stuck_call_gives_its_worker_back():
    late = threading.Event()
    stuck, answer = _run_all([late.wait, lambda: "here"], workers=1, timeout_s=0.1)
    late.set()
    assert isinstance(stuck, CallTimeoutError)
    assert answer == "here"


def test_a_calls_time_excludes_waiting_for_a_worker():
    results = _run_all([lambda: time.sleep(0.15)] * 4, workers=1, timeout_s=0.4)
    assert results == [None] * 4


def test_a_timeout_of_the_call_itself_is_not_ours():
    def call():
        raise TimeoutError("the socket timed out")

    (error,) = _run_all([call])
    assert str(error) == "the socket timed out"


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_call_raises_is_raised(workers):
    def call():
        raise KeyError("x")

    (error,) = _run_all([call], workers=workers)
    assert isinstance(error, KeyError)


def test_an_asynchronous_call_that_hangs_is_given_up():
    async def hang():
        await asyncio.sleep(20)

    began = time.perf_counter()
    (error,) = _run_all([hang], timeout_s=0.05)
    assert isinstance(error, CallTimeoutError)
    assert time.perf_counter() - began < 10

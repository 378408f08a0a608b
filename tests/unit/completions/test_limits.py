import asyncio

import pytest
from pydantic import ValidationError

from espalier.completions import in_order
from espalier.completions.endpoint import RateLimit
from espalier.config import EndpointConfig


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        self.now += seconds


def times_of(count, *, tokens=1, requests_per_minute=0, tokens_per_minute=0):
    """When each of `count` requests is let through, in seconds."""
    clock = Clock()
    limit = RateLimit(requests_per_minute, tokens_per_minute, clock=clock, sleep=clock.sleep)

    async def session():
        times = []
        for _ in range(count):
            await limit.acquire(tokens)
            times.append(round(clock.now, 3))
        return times

    return asyncio.run(session())


@pytest.mark.parametrize(
    ("limits", "times"),
    [
        ({"tokens": 10**9}, [0, 0, 0, 0]),
        ({"requests_per_minute": 3}, [0, 0, 0, 20, 40]),  # a full bucket empties at once
        ({"tokens": 50, "tokens_per_minute": 100}, [0, 0, 30, 60]),
        ({"tokens": 500, "tokens_per_minute": 100}, [0, 300]),  # more than the bucket holds
    ],
)
def test_requests_wait_for_their_bucket(limits, times):
    assert times_of(len(times), **limits) == times


def test_results_keep_their_order_and_a_bounded_number_runs_ahead():
    drawn, handed = [], []

    def items():
        for number in range(20):
            drawn.append(number)
            assert number - len(handed) < 4
            yield number

    async def work(number):
        await asyncio.sleep((20 - number) / 5000)
        return number

    async def session():
        async for result in in_order(work, items(), in_flight=4):
            handed.append(result)

    asyncio.run(session())
    assert handed == drawn == list(range(20))


def test_an_error_cancels_what_is_in_flight():
    cancelled = []

    async def work(number):
        if number == 0:
            raise ValueError("no")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    async def session():
        async for _ in in_order(work, range(3), in_flight=3):
            pass

    with pytest.raises(ValueError, match="no"):
        asyncio.run(session())
    assert cancelled == [1, 2]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"url": "ftp://host/v1"}, "ftp"),
        ({"url": "http://user:pw@host/v1"}, "key_file"),
        ({"url": "http://host/v1?key=1"}, "key_file"),
        ({"replay_only": True}, "cache"),
        ({"max_cost": 5}, "prices"),
    ],
)
def test_settings_that_cannot_be_kept_are_refused(fields, complaint):
    with pytest.raises(ValidationError, match=complaint):
        EndpointConfig(**fields)

"""Pauses between the attempts of a request, taken down and not waited for."""

import asyncio
from types import SimpleNamespace

import pytest


@pytest.fixture
def pauses(monkeypatch):
    """Seconds of each pause, on a clock that only they move."""
    taken, now = [], [0.0]
    real_sleep = asyncio.sleep

    def sleep(seconds):
        taken.append(seconds)
        now[0] += seconds

    async def async_sleep(seconds):
        if seconds:
            sleep(seconds)
        await real_sleep(0)

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now[0])
    monkeypatch.setattr("tenacity.time", clock)
    monkeypatch.setattr("tenacity.nap.time", clock)
    monkeypatch.setattr(asyncio, "sleep", async_sleep)
    return taken

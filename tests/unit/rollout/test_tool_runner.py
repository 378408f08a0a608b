"""Tools are called within their limits, and what hangs is named within its deadline."""

import asyncio
import os
import re
import threading
import time
from types import SimpleNamespace

import pytest

from espalier.config import Profile
from espalier.environments.losses import CallTimeoutError
from espalier.records import HungError, ToolCalls
from espalier.rollout import waits as waits_module
from espalier.rollout.engines.lockstep import LockstepEngine
from espalier.rollout.episode import ToolRunner, _NamedCalls
from espalier.rollout.roller import Roller
from espalier.rollout.waits import (
    ENGINE_ACTION,
    EpisodeWaits,
    exit_if_hung,
)
from tests.factories.tiny import lookup_environments, tiny_policy
from tests.factories.training import SEARCH, TASKS


def _run_all(calls, **settings):
    async def run():
        tools = ToolRunner(**{"workers": 2, "timeout_s": 5.0} | settings)
        return await asyncio.gather(*(tools.run(call) for call in calls), return_exceptions=True)

    return asyncio.run(run())


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
    async def hang():
        await asyncio.sleep(20)

    late, began = threading.Event(), time.perf_counter()
    stuck, hung, answer = _run_all([late.wait, hang, lambda: "here"], workers=1, timeout_s=0.1)
    late.set()
    assert isinstance(stuck, CallTimeoutError)
    assert isinstance(hung, CallTimeoutError)
    assert answer == "here"
    assert time.perf_counter() - began < 10


def test_a_calls_time_excludes_waiting_for_a_worker():
    results = _run_all([lambda: time.sleep(0.15)] * 4, workers=1, timeout_s=0.4)
    assert results == [None] * 4


CALL = ToolCalls.one("search", {"query": "lyon country"})


def test_an_engine_that_never_answers_ends_the_rollout(monkeypatch):
    profile = Profile.model_validate({"rollout": {"deadline_s": 0.9, "tool_timeout_s": 0.1}})
    roller = Roller.local(tiny_policy(), lookup_environments(SEARCH, profile), profile)

    async def never(engine, slot, max_tokens):
        await asyncio.Event().wait()

    monkeypatch.setattr(LockstepEngine, "sample", never)
    with pytest.raises(HungError, match=r"lyon-0 .*\d s"):
        roller.roll_out(TASKS[:1], samples=2, temperature=1.0, seed=0)


def test_a_long_episode_that_goes_on_is_no_hang():
    async def slowly():
        waits = EpisodeWaits(limit_s=0.3)

        async def episode():
            for _ in range(6):
                with waits.wait("a", ENGINE_ACTION):
                    await asyncio.sleep(0.08)
            return "its end"

        return await waits.by_the_deadline(asyncio.ensure_future(episode()))

    assert asyncio.run(slowly()) == "its end"


def test_a_tool_that_blocks_the_loop_ends_the_process(monkeypatch, caplog):
    freed, statuses = threading.Event(), []

    def ended(status):
        statuses.append(status)
        freed.set()

    monkeypatch.setattr(waits_module.os, "_exit", ended)
    monkeypatch.setattr(waits_module, "_POLL_S", 0.02)
    monkeypatch.setattr(waits_module, "_LOOP_ANSWERS_WITHIN_S", 0.05)
    waits = EpisodeWaits(limit_s=0.1)
    context = SimpleNamespace(tools=ToolRunner(workers=0, timeout_s=9), waits=waits)

    async def play():
        await _NamedCalls("lyon-0", context).run(SimpleNamespace(s=lambda _: freed.wait(9)).s, CALL)

    with exit_if_hung(waits.overdue):
        asyncio.run(play())
    assert statuses[0] == os.EX_TEMPFAIL
    assert re.search("0.1 s: task lyon-0 .*the tool search", caplog.text)

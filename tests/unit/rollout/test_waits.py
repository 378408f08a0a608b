"""What hangs is named within its deadline: a tool, the engine, the event loop itself."""

import asyncio
import re
import threading
import time
from types import SimpleNamespace

import pytest

from espalier.config import Profile
from espalier.environments import EnvironmentLostError
from espalier.environments.losses import CallTimeoutError
from espalier.records import HungError, ToolCalls
from espalier.rollout import waits as waits_module
from espalier.rollout.engines.lockstep import LockstepEngine
from espalier.rollout.episode import ToolRunner, _NamedCalls
from espalier.rollout.roller import Roller
from espalier.rollout.waits import (
    ENGINE_ACTION,
    ENGINE_PLACE,
    EpisodeWaits,
    exit_if_hung,
    hang_message,
    hangs_after_s,
)
from tests.factories.tiny import lookup_environments, tiny_policy
from tests.factories.training import SEARCH, TASKS

CALL = ToolCalls.one("search", {"query": "lyon country"})


def test_the_longest_waits_are_named_first():
    waits = EpisodeWaits()
    with waits.wait("a", "the tool search"), waits.wait("b", "x"), waits.wait("c", "y"):
        time.sleep(0.01)
        with waits.wait("d", "z"):
            said = hang_message(9.0, reversed(waits.open), also=["loading of weights, version 3"])
    assert re.search(r" 9 s: .*version 3; task a .*the tool search; .*1 more", said)
    assert waits.open == []


def test_a_tool_is_named_before_what_it_keeps_waiting():
    waits = EpisodeWaits()
    with (
        waits.wait("a", ENGINE_ACTION),
        waits.wait("b", ENGINE_PLACE),
        waits.wait("c", "the tool x"),
    ):
        said = hang_message(9.0, waits.open)
    assert said.index("task c has") < said.index("task a has") < said.index("task b has")


def test_a_call_that_was_given_up_is_named_once(caplog):
    late, waits = threading.Event(), EpisodeWaits()
    context = SimpleNamespace(tools=ToolRunner(workers=2, timeout_s=0.05), waits=waits)
    step = SimpleNamespace(step=lambda action: late.wait()).step

    async def call(task_id):
        context.tools = ToolRunner(workers=2, timeout_s=0.05)
        await _NamedCalls(task_id, context).run(step, CALL)

    for task_id in ("lyon-0", "paris-0"):
        with pytest.raises(CallTimeoutError):
            asyncio.run(call(task_id))
    late.set()
    (line,) = caplog.messages
    assert "lyon-0: the tool search" in line


def test_why_an_environment_was_lost_is_said_once(caplog):
    context = SimpleNamespace(tools=ToolRunner(workers=0, timeout_s=1.0), waits=EpisodeWaits())

    def reset(task):
        raise EnvironmentLostError(f"http://desk: full\nat {task} {'x' * 900}")

    for task_id in ("lyon-0", "paris-0"):
        with pytest.raises(EnvironmentLostError):
            asyncio.run(_NamedCalls(task_id, context).run(reset, task_id))
    (line,) = caplog.messages
    assert "http://desk: full at lyon-0" in line
    assert len(line) < 700


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


def test_a_wait_that_is_cancelled_is_no_progress():
    waits = EpisodeWaits()
    time.sleep(0.1)
    with pytest.raises(asyncio.CancelledError), waits.wait("a", "the tool x"):
        raise asyncio.CancelledError
    assert waits.silent_s >= 0.1
    assert waits.open == []
    with waits.wait("a", "the tool x"):
        pass
    assert waits.silent_s < 0.1


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
    assert statuses[0] == 1
    assert re.search("0.1 s: task lyon-0 .*the tool search", caplog.text)


@pytest.mark.parametrize(
    ("sections", "seconds"),
    [
        ({}, 3660.0),
        ({"rollout": {"deadline_s": 5, "tool_timeout_s": 2}}, 7.0),
        ({"agent": {"command": ["play"], "deadline_s": 300}}, 3960.0),
    ],
)
def test_limits_of_calls_are_on_top_of_the_deadline(sections, seconds):
    assert hangs_after_s(Profile.model_validate(sections)) == seconds

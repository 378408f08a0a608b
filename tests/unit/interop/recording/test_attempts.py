"""How attempts end: rewarded, lost and counted, forgotten."""

import asyncio
import gc
import weakref
from dataclasses import replace

import pytest

from espalier.config import ServingConfig
from espalier.records.trajectory import FinishReason
from espalier.rollout.engines.engine import Sampling
from espalier_interop.recording.endpoint import recording
from tests.unit.interop.recording.recorded import (
    ANSWER,
    CALL,
    LIMITS,
    OTHER_CALL,
    QUESTION,
    Recorded,
    chat,
    result_of,
    run,
    said,
)

CALLS = "v1/chat/completions"


class Stuck:
    """An engine whose sessions never answer, or break."""

    policy_version = 0

    def __init__(self, fault=None):
        self.fault, self.open_sessions = fault, 0

    async def open(self, prompt_ids, sampling):
        self.open_sessions += 1
        return self

    async def sample(self, *, max_tokens):
        if self.fault:
            raise self.fault
        await asyncio.sleep(3600)

    def close(self):
        self.open_sessions -= 1


def rewarded(*bodies):
    """The answers to posted rewards, and the trajectory of the attempt."""
    recorded = Recorded(ANSWER)

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            said(await client.post(CALLS, json=chat(QUESTION)))
            posts = [
                await client.post(
                    "reward", content=body, headers={"content-type": "application/json"}
                )
                for body in bodies
            ]
        return [post.status_code for post in posts], recorded.trajectory(attempt)

    return run(play())


def test_an_attempt_without_a_reward_is_lost_and_not_zero():
    _, trajectory = rewarded()
    assert trajectory.finish_reason is FinishReason.NO_REWARD
    assert trajectory.is_lost
    assert trajectory.reward == {}


@pytest.mark.parametrize(
    "body",
    [
        b'{"reward": NaN}',
        b'{"reward": 1e999}',
        b'{"reward": "1"}',
        b"{}",
        b"[1]",
        b'{"reward": 1, "terms": {"a": 1}}',
        b'{"terms": {"a": Infinity}}',
        b'{"terms": {}}',
        b'{"terms": {"format": 1}}',
        b'{"terms": {"outcome": 1, "turns": 1}}',
    ],
)
def test_a_reward_that_is_none_is_refused(body):
    statuses, trajectory = rewarded(body)
    assert statuses == [400]
    assert trajectory.finish_reason is FinishReason.NO_REWARD


def test_the_same_reward_may_be_posted_twice():
    statuses, trajectory = rewarded(b'{"reward": 0.5}', b'{"reward": 0.5}')
    assert statuses == [200, 200]
    assert trajectory.reward == {"outcome": 0.5}


def test_of_two_different_rewards_the_first_stands():
    statuses, trajectory = rewarded(b'{"reward": 0.5}', b'{"terms": {"outcome": 1.0}}')
    assert statuses == [200, 409]
    assert trajectory.reward == {"outcome": 0.5}


def test_an_attempt_without_a_call_is_lost():
    recorded = Recorded()
    attempt = recorded.recorder.begin()
    attempt.post_reward({"outcome": 1.0})
    assert recorded.trajectory(attempt).finish_reason is FinishReason.AGENT_FAILED


@pytest.mark.parametrize("path", [CALLS, "v1/responses", "v1/messages", "reward"])
def test_a_request_to_an_ended_attempt_is_refused(path):
    recorded = Recorded(ANSWER)

    async def play():
        attempt = recorded.recorder.begin()
        recorded.trajectory(attempt)
        async with recorded.client(attempt) as client:
            return await client.post(path, json={})

    answer = run(play())
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert "has ended" in error["message"]
    assert ("type" in answer.json()) == (path == "v1/messages"), "the format's own shape"


def test_an_ended_attempt_is_forgotten():
    recorded = Recorded(*[ANSWER] * 5)

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            said(await client.post(CALLS, json=chat(QUESTION)))
        recorded.trajectory(attempt)
        return weakref.ref(attempt), weakref.ref(attempt.graph)

    known = [one for _ in range(5) for one in run(play())]
    gc.collect()
    assert recorded.recorder.open_attempts == 0
    assert [one() for one in known] == [None] * 10


def test_a_client_that_leaves_loses_the_attempt():
    engine = Stuck()
    recorded = Recorded(engine=engine)

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            asking = asyncio.create_task(attempt.answer(await _asked()))
            other = asyncio.create_task(client.post(CALLS, json=chat(QUESTION)))
            while engine.open_sessions < 2:
                await asyncio.sleep(0)
            asking.cancel()
            answer = await other
            late = await client.post("reward", json={"reward": 1.0})
        return attempt, answer, late

    attempt, answer, late = run(play())
    assert (attempt.lost, attempt.open_calls) == (FinishReason.LOST_CALL, 0)
    assert "client left" in attempt.lost_because
    assert engine.open_sessions == 0
    assert answer.status_code == late.status_code == 409


async def _asked():
    import json

    from espalier_interop.recording.endpoint import FORMATS

    return FORMATS["chat/completions"].read(json.dumps(chat(QUESTION)).encode(), lambda _: ())


def test_a_call_that_takes_too_long_is_lost():
    recorded = Recorded(engine=Stuck(), limits=replace(LIMITS, call_timeout_s=0.05))

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            return attempt, await client.post(CALLS, json=chat(QUESTION))

    attempt, answer = run(play())
    assert answer.status_code == 504
    assert attempt.lost is FinishReason.LOST_CALL


def test_a_broken_engine_loses_the_call_and_is_told():
    recorded = Recorded(engine=Stuck(fault=RuntimeError("out of memory")))

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            return attempt, await client.post(CALLS, json=chat(QUESTION))

    attempt, answer = run(play())
    assert answer.status_code == 500
    assert "out of memory" in answer.json()["error"]["message"]
    assert attempt.lost is FinishReason.LOST_CALL
    assert isinstance(attempt.failure, RuntimeError)


def test_an_attempt_that_ends_with_an_open_call_is_lost():
    engine = Stuck()
    recorded = Recorded(engine=engine)

    async def play():
        attempt = recorded.recorder.begin()
        asking = asyncio.create_task(attempt.answer(await _asked()))
        while not engine.open_sessions:
            await asyncio.sleep(0)
        trajectory = recorded.trajectory(attempt)
        await asyncio.gather(asking, return_exceptions=True)
        return trajectory

    assert run(play()).finish_reason is FinishReason.LOST_CALL
    assert engine.open_sessions == 0


def test_the_deadline_of_an_attempt_ends_its_calls():
    engine = Stuck()
    recorded = Recorded(engine=engine)

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            with recorded.recorder.deadline(attempt, 0.05):
                answer = await client.post(CALLS, json=chat(QUESTION))
        return answer, recorded.trajectory(attempt)

    answer, trajectory = run(play())
    assert answer.status_code == 409
    assert trajectory.finish_reason is FinishReason.TIMEOUT


def test_a_call_beyond_the_most_is_refused():
    recorded = Recorded(ANSWER, ANSWER, limits=replace(LIMITS, max_calls=1))

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            return [await client.post(CALLS, json=chat(QUESTION)) for _ in range(2)]

    assert [answer.status_code for answer in run(play())] == [200, 429]


def test_a_huge_body_is_refused_before_it_is_parsed():
    recorded = Recorded(CALL, config=ServingConfig(max_body_bytes=2048))

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            huge = chat({"role": "user", "content": "x" * 4096})
            return attempt, await client.post(CALLS, json=huge)

    attempt, answer = run(play())
    assert answer.status_code == 413
    assert attempt.lost is None


def test_draws_depend_on_the_prompt_and_not_on_the_order():
    def seeds(*order):
        recorded = Recorded(*[ANSWER] * len(order))

        async def play():
            attempt = recorded.recorder.begin(sampling=Sampling(temperature=0.7, seed=5))
            async with recorded.client(attempt) as client:
                for content in order:
                    body = chat({"role": "user", "content": content}, temperature=0.1)
                    said(await client.post(CALLS, json=body))

        run(play())
        drawn = recorded.engine.samplings
        assert {one.temperature for one in drawn} == {0.7}, "that of the attempt"
        return {
            (content, n): s.seed for n, (content, s) in enumerate(zip(order, drawn, strict=True))
        }

    first, second = seeds("lyon", "france", "lyon"), seeds("france", "lyon", "lyon")
    assert first["lyon", 0] == second["lyon", 1] != first["lyon", 2] == second["lyon", 2]
    assert first["france", 1] == second["france", 0]


def test_a_history_is_kept_once():
    recorded = Recorded(CALL, OTHER_CALL, ANSWER)

    async def play():
        attempt = recorded.recorder.begin()
        messages = [QUESTION]
        async with recorded.client(attempt) as client:
            for _ in range(3):
                message = said(await client.post(CALLS, json=chat(*messages)))
                messages += [message, result_of(message)] if message.get("tool_calls") else []
        return attempt.graph.calls

    first, second, third = run(play())
    assert all(one is other for one, other in zip(first.asked, second.asked, strict=False))
    assert all(one is other for one, other in zip(second.asked, third.asked, strict=False))
    assert second.asked[1] is first.said


def test_an_open_endpoint_spares_full_collections():
    recorded = Recorded(ANSWER)

    async def frozen():
        async with recording(recorded.endpoint, ServingConfig()):
            return gc.get_freeze_count()

    assert run(frozen()) > gc.get_freeze_count()


def test_an_engine_that_fails_when_stopped_was_late():
    class Clumsy(Stuck):
        async def sample(self, *, max_tokens):
            try:
                await super().sample(max_tokens=max_tokens)
            finally:
                raise RuntimeError("it does not stop well")

    recorded = Recorded(engine=Clumsy(), limits=replace(LIMITS, call_timeout_s=0.05))

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            answer = await client.post(CALLS, json=chat(QUESTION))
        return answer.status_code, attempt

    status, attempt = run(play())
    assert (status, attempt.lost, attempt.failure) == (504, FinishReason.LOST_CALL, None)

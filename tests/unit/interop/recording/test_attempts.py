"""How attempts end: rewarded, lost and counted, forgotten."""

import asyncio
import gc
import weakref
from dataclasses import replace

import httpx2
import pytest

from espalier.config import ServingConfig
from espalier.records.trajectory import FinishReason
from espalier.rollout.engines.engine import Sampling
from espalier_interop.recording.endpoint import recording
from tests.factories import smuggled
from tests.unit.interop.recording.recorded import (
    ANSWER,
    CALL,
    CHAT,
    LIMITS,
    OTHER_CALL,
    QUESTION,
    Recorded,
    asked,
    chat,
    played,
    posted,
    result_of,
)


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
    """The statuses of posted rewards, and the trajectory of the attempt."""
    recorded = Recorded(ANSWER)

    async def play(client):
        await asked(client, QUESTION)
        headers = {"content-type": "application/json"}
        posts = [await client.post("reward", content=body, headers=headers) for body in bodies]
        return [post.status_code for post in posts]

    attempt, statuses = played(recorded, play)
    return statuses, recorded.trajectory(attempt)


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


def test_of_several_rewards_the_first_stands():
    same, other = b'{"reward": 0.5}', b'{"terms": {"outcome": 1.0}}'
    statuses, trajectory = rewarded(same, same, other)
    assert statuses == [200, 200, 409]
    assert trajectory.reward == {"outcome": 0.5}


def test_an_attempt_without_a_call_is_lost():
    recorded = Recorded()
    attempt = recorded.recorder.begin()
    attempt.post_reward({"outcome": 1.0})
    assert recorded.trajectory(attempt).finish_reason is FinishReason.AGENT_FAILED


@pytest.mark.parametrize("path", [CHAT, "v1/responses", "v1/messages", "reward"])
def test_a_request_to_an_ended_attempt_is_refused(path):
    recorded = Recorded(ANSWER)

    async def play():
        attempt = recorded.recorder.begin()
        recorded.trajectory(attempt)
        async with recorded.client(attempt) as client:
            return await client.post(path, json={})

    answer = asyncio.run(play())
    assert answer.status_code == 404
    assert "message" in answer.json()["error"]
    assert ("type" in answer.json()) == (path == "v1/messages"), "the format's own shape"


def test_an_ended_attempt_is_forgotten():
    recorded = Recorded(*[ANSWER] * 5)

    def known():
        attempt, _ = posted(recorded, chat(QUESTION))
        recorded.trajectory(attempt)
        return weakref.ref(attempt), weakref.ref(attempt.graph)

    found = [one for _ in range(5) for one in known()]
    gc.collect()
    assert recorded.recorder.open_attempts == 0
    assert [one() for one in found] == [None] * 10


def test_a_client_that_leaves_loses_the_attempt():
    engine = Stuck()
    recorded = Recorded(engine=engine)

    async def play(client):
        leaving = asyncio.create_task(client.post(CHAT, json=chat(QUESTION)))
        other = asyncio.create_task(client.post(CHAT, json=chat(QUESTION)))
        while engine.open_sessions < 2:
            await asyncio.sleep(0)
        leaving.cancel()
        return await other, await client.post("reward", json={"reward": 1.0})

    attempt, (answer, late) = played(recorded, play)
    assert (attempt.lost, attempt.open_calls) == (FinishReason.LOST_CALL, 0)
    assert engine.open_sessions == 0
    assert answer.status_code == late.status_code == 409


class Clumsy(Stuck):
    async def sample(self, *, max_tokens):
        try:
            await super().sample(max_tokens=max_tokens)
        finally:
            raise RuntimeError("it does not stop well")


FAULT = RuntimeError("out of memory")


@pytest.mark.parametrize(
    ("engine", "status", "failure"),
    [(Stuck(), 504, None), (Clumsy(), 504, None), (Stuck(FAULT), 500, FAULT)],
    ids=["late", "late and clumsy", "broken"],
)
def test_a_call_that_is_late_or_breaks_is_lost(engine, status, failure):
    limits = replace(LIMITS, call_timeout_s=0.05)
    attempt, (answer,) = posted(Recorded(engine=engine, limits=limits), chat(QUESTION))
    assert (answer.status_code, attempt.failure) == (status, failure)
    assert attempt.lost is FinishReason.LOST_CALL
    if failure:
        assert "out of memory" in answer.json()["error"]["message"]


def test_an_attempt_that_ends_with_an_open_call_is_lost():
    engine = Stuck()
    recorded = Recorded(engine=engine)

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            asking = asyncio.create_task(client.post(CHAT, json=chat(QUESTION)))
            while not engine.open_sessions:
                await asyncio.sleep(0)
            trajectory = recorded.trajectory(attempt)
            await asyncio.gather(asking, return_exceptions=True)
        return trajectory

    assert asyncio.run(play()).finish_reason is FinishReason.LOST_CALL
    assert engine.open_sessions == 0


def test_the_deadline_of_an_attempt_ends_its_calls():
    recorded = Recorded(engine=Stuck())

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            with recorded.recorder.deadline(attempt, 0.05):
                answer = await client.post(CHAT, json=chat(QUESTION))
        return answer, recorded.trajectory(attempt)

    answer, trajectory = asyncio.run(play())
    assert answer.status_code == 409
    assert trajectory.finish_reason is FinishReason.TIMEOUT


def test_a_call_beyond_the_most_is_refused():
    recorded = Recorded(ANSWER, ANSWER, limits=replace(LIMITS, max_calls=1))
    _, answers = posted(recorded, chat(QUESTION), chat(QUESTION))
    assert [answer.status_code for answer in answers] == [200, 429]


def test_a_huge_body_is_refused_before_it_is_parsed():
    recorded = Recorded(CALL, config=ServingConfig(max_body_bytes=2048))
    attempt, (answer,) = posted(recorded, chat({"role": "user", "content": "x" * 4096}))
    assert answer.status_code == 413
    assert attempt.lost is None


def test_draws_depend_on_the_prompt_and_not_on_the_order():
    def seeds(*order):
        recorded = Recorded(*[ANSWER] * len(order))
        bodies = [chat({"role": "user", "content": one}, temperature=0.1) for one in order]
        posted(recorded, *bodies, sampling=Sampling(temperature=0.7, seed=5))
        drawn = recorded.engine.samplings
        assert {one.temperature for one in drawn} == {0.7}, "that of the attempt"
        return [one.seed for one in drawn]

    first, second = seeds("lyon", "france", "lyon"), seeds("france", "lyon", "lyon")
    assert first[0] == second[1] != first[2] == second[2]
    assert first[1] == second[0]


def test_a_history_is_kept_once():
    async def play(client):
        messages = [QUESTION]
        for _ in range(2):
            message = await asked(client, *messages)
            messages += [message, result_of(message)]
        await asked(client, *messages)

    first, second, third = played(Recorded(CALL, OTHER_CALL, ANSWER), play)[0].graph.calls
    assert all(one is other for one, other in zip(first.asked, second.asked, strict=False))
    assert all(one is other for one, other in zip(second.asked, third.asked, strict=False))
    assert second.asked[1] is first.said


def test_an_open_endpoint_spares_full_collections():
    async def frozen():
        async with recording(Recorded(ANSWER).endpoint, ServingConfig()):
            return gc.get_freeze_count()

    assert asyncio.run(frozen()) > gc.get_freeze_count()


def test_pages_and_hidden_requests_reach_no_attempt():
    async def asked():
        async with recording(Recorded(ANSWER).endpoint, ServingConfig()) as base:
            hidden = [
                await asyncio.to_thread(smuggled.statuses_at, base, smuggled.smuggled(kind))
                for kind in smuggled.KINDS
            ]
            async with httpx2.AsyncClient(base_url=base) as client:
                pages = [
                    (await client.get("/health", headers=headers)).status_code
                    for headers in ({"Origin": "http://a.b"}, {"Host": "a.b"}, {"Origin": base})
                ]
            return hidden, pages

    hidden, pages = asyncio.run(asked())
    assert hidden == [[400]] * len(smuggled.KINDS)
    assert pages == [403, 403, 200]

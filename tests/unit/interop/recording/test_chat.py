"""Calls in the chat format: recorded as sampled, joined, refused."""

import asyncio
from dataclasses import replace

import pytest

from espalier.records import Message
from espalier.records.trajectory import FinishReason
from tests.unit.interop.recording.recorded import (
    ANSWER,
    CALL,
    CHAT,
    LIMITS,
    OTHER_ANSWER,
    OTHER_CALL,
    QUESTION,
    RESULT,
    Recorded,
    asked,
    chat,
    played,
    posted,
    result_of,
    said,
    searched,
    sse,
)


def test_a_conversation_is_recorded_as_the_engine_sampled_it():
    recorded = Recorded(CALL, ANSWER)

    async def play(client):
        messages = await searched(client)
        await client.post("reward", json={"reward": 1.0})
        return messages

    attempt, messages = played(recorded, play)
    trajectory, dialect = recorded.trajectory(attempt), recorded.dialect
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"query": "lyon country"}'
    assert messages[-1]["content"] == "france"
    first, second = recorded.engine.sessions
    assert trajectory.token_ids == tuple(second.context)
    assert trajectory.token_ids[: len(first.context)] == tuple(first.context)
    trained = [
        i for i, mask in zip(trajectory.token_ids, trajectory.action_mask, strict=True) if mask
    ]
    assert trained == [*dialect.text_ids(CALL), *dialect.text_ids(ANSWER)]
    assert trajectory.reward == {"outcome": 1.0}
    assert (trajectory.policy_version, trajectory.answer) == (3, "france")
    # its tokens are those of the built-in loop
    prompt = dialect.prompt_ids((Message(role="user", content=QUESTION["content"]),))
    result = dialect.result_ids((Message(role="tool", content=RESULT),))
    assert attempt.graph.calls[1].prompt_ids == (*prompt, *dialect.text_ids(CALL), *result)


async def thoughts_and_white_space_dropped(client):
    messages = await searched(client)
    bare = [{k: v for k, v in one.items() if k != "reasoning_content"} for one in messages]
    bare[-1]["content"] = f" {bare[-1]['content']}\n"
    await asked(client, *bare, {"role": "user", "content": "and the currency?"})


async def at_the_same_time(client):
    await asyncio.gather(*(client.post(CHAT, json=chat(QUESTION)) for _ in range(2)))


async def retry_and_going_on_from_the_answer_kept(client):
    kept = await asked(client, QUESTION)
    await asked(client, QUESTION)
    await asked(client, QUESTION, kept, result_of(kept))


async def messages_in_another_order(client):
    question, call, result, answer = await searched(client)
    await asked(client, question, answer, question, call, result)


async def going_on_from_a_cut_answer(client):
    cut = await client.post(CHAT, json=chat(QUESTION, max_tokens=3))
    assert cut.json()["choices"][0]["finish_reason"] == "length"
    await asked(client, QUESTION, said(cut), QUESTION)


@pytest.mark.parametrize(
    ("play", "says", "parents"),
    [
        (thoughts_and_white_space_dropped, (CALL, ANSWER, ANSWER), [None, 0, 1]),
        (at_the_same_time, (CALL, OTHER_CALL), [None, None]),
        (
            retry_and_going_on_from_the_answer_kept,
            (CALL, OTHER_CALL, ANSWER),
            [None, None, 0],
        ),
        (messages_in_another_order, (CALL, ANSWER, OTHER_ANSWER), [None, 0, None]),
        (going_on_from_a_cut_answer, (CALL, ANSWER), [None, 0]),
    ],
)
def test_a_call_goes_on_from_what_it_repeats(play, says, parents):
    attempt, _ = played(Recorded(*says), play)
    assert attempt.graph.parents() == parents
    assert attempt.foreign_messages == 0


def test_compaction_reads_a_kept_answer_as_it_was_sampled():
    async def play(client):
        messages = await searched(client)
        await asked(client, {"role": "user", "content": "country ?"}, messages[-1], QUESTION)

    graph = played(Recorded(CALL, ANSWER, OTHER_ANSWER), play)[0].graph
    assert graph.parents() == [None, 0, None]
    sampled = graph.calls[1].answer_ids
    compacted = graph.calls[2].prompt_ids
    assert any(compacted[i : i + len(sampled)] == sampled for i in range(len(compacted)))


@pytest.mark.parametrize("branches", [False, True])
def test_an_edited_answer_is_drift_or_a_branch_as_asked(branches):
    limits = replace(LIMITS, branches_on_edits=branches)
    recorded = Recorded(CALL, ANSWER, OTHER_ANSWER, CALL, limits=limits)

    async def play(client):
        messages = await searched(client)
        messages[-1]["content"] = "paris"
        edited = await client.post(CHAT, json=chat(*messages, QUESTION))
        after = await client.post(CHAT, json=chat(QUESTION))
        await client.post("reward", json={"reward": 1.0})
        return edited, after

    attempt, (edited, after) = played(recorded, play)
    trajectory = recorded.trajectory(attempt)
    if branches:
        assert edited.status_code == 200
        assert attempt.graph.parents() == [None, 0, 0, None]
        assert attempt.foreign_messages == 1
        assert trajectory.finish_reason is FinishReason.ANSWERED
    else:
        assert edited.status_code == after.status_code == 409
        assert "'paris'" in edited.json()["error"]["message"]
        assert trajectory.finish_reason is FinishReason.DRIFTED
        assert trajectory.is_lost
        assert trajectory.reward == {}
        assert recorded.recorder.counts.lost[FinishReason.DRIFTED] == 1


def test_an_edited_call_is_known_by_its_id():
    async def play(client):
        messages = await searched(client)
        messages[1]["tool_calls"][0]["function"]["arguments"] = '{"query": "paris"}'
        moved = chat({"role": "user", "content": "country"}, *messages[1:3])
        return await client.post(CHAT, json=moved)

    _, answer = played(Recorded(CALL, ANSWER), play)
    assert answer.status_code == 409


def test_a_stream_is_recorded_and_says_that_it_came_whole():
    body = chat(QUESTION, stream=True, stream_options={"include_usage": True})
    attempt, (answer,) = posted(Recorded(CALL), body)
    first, last, usage = sse(answer)
    assert answer.headers["x-espalier-stream"] == "whole"
    assert first["choices"][0]["delta"]["tool_calls"][0]["function"]["name"] == "search"
    assert last["choices"][0]["finish_reason"] == "tool_calls"
    assert usage["usage"]["completion_tokens"] == len(attempt.graph.calls[0].answer_ids)
    assert answer.text.endswith("data: [DONE]\n\n")


SAID = {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"n": 2}, "n: one answer"),
        ({"stop": ["x"]}, "stop"),
        ({"logprobs": True}, "logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [QUESTION, SAID]}, "prefill"),
        ({"messages": [SAID, QUESTION]}, "must begin"),
        ({"messages": [QUESTION, SAID, SAID, QUESTION]}, "two messages"),
        ({"tools": [{"type": "function", "function": {"name": "fly"}}]}, "fly"),
        ({"messages": [{"role": "user", "content": "lyon " * 400}]}, "shorten"),
    ],
)
def test_what_is_not_supported_is_refused_and_loses_nothing(fields, told):
    attempt, (answer,) = posted(Recorded(CALL), chat(QUESTION) | fields)
    assert answer.status_code == 400
    assert told in answer.json()["error"]["message"]
    assert attempt.lost is None
    assert len(attempt.graph) == 0

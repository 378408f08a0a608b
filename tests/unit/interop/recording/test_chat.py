"""Calls in the chat format: recorded as sampled, joined, refused."""

import asyncio
from dataclasses import replace

import pytest

from espalier.records import Message
from espalier.records.trajectory import FinishReason
from tests.unit.interop.recording.recorded import (
    ANSWER,
    CALL,
    LIMITS,
    OTHER_ANSWER,
    OTHER_CALL,
    QUESTION,
    Recorded,
    chat,
    result_of,
    run,
    said,
    sse,
)


async def searched(client, **fields):
    """One search and an answer, as an agent plays them; the messages of the conversation."""
    call = said(await client.post("v1/chat/completions", json=chat(QUESTION, **fields)))
    messages = [QUESTION, call, result_of(call)]
    answer = said(await client.post("v1/chat/completions", json=chat(*messages, **fields)))
    return [*messages, answer]


def test_a_conversation_is_recorded_as_the_engine_sampled_it():
    recorded = Recorded(CALL, ANSWER)

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            messages = await searched(client)
            await client.post("reward", json={"reward": 1.0})
        return messages, recorded.trajectory(attempt)

    messages, trajectory = run(play())
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"query": "lyon country"}'
    assert messages[-1]["content"] == "france"
    sessions = recorded.engine.sessions
    assert trajectory.token_ids == tuple(sessions[1].context)
    assert trajectory.token_ids[: len(sessions[0].context)] == tuple(sessions[0].context)
    trained = [
        i for i, mask in zip(trajectory.token_ids, trajectory.action_mask, strict=True) if mask
    ]
    wrote = [*recorded.dialect.text_ids(CALL), *recorded.dialect.text_ids(ANSWER)]
    assert trained == wrote
    assert trajectory.reward == {"outcome": 1.0}
    assert (trajectory.policy_version, trajectory.answer) == (3, "france")


def test_its_tokens_are_those_of_the_built_in_loop():
    recorded = Recorded(CALL, ANSWER)
    dialect = recorded.dialect

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            await searched(client)
        return attempt.graph.calls[1].prompt_ids

    prompt = dialect.prompt_ids((Message(role="user", content=QUESTION["content"]),))
    result = dialect.result_ids((Message(role="tool", content="Lyon country: France"),))
    assert run(play()) == (*prompt, *dialect.text_ids(CALL), *result)


def test_thoughts_and_white_space_may_be_dropped():
    recorded = Recorded(CALL, ANSWER, ANSWER)

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            messages = await searched(client)
            bare = [{k: v for k, v in one.items() if k != "reasoning_content"} for one in messages]
            bare[-1]["content"] = f" {bare[-1]['content']}\n"
            again = chat(*bare, {"role": "user", "content": "and the currency?"})
            said(await client.post("v1/chat/completions", json=again))
        return attempt

    assert run(play()).graph.parents() == [None, 0, 1]


def test_two_calls_at_the_same_time_are_two_branches():
    recorded = Recorded(CALL, OTHER_CALL)

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            await asyncio.gather(
                *(client.post("v1/chat/completions", json=chat(QUESTION)) for _ in range(2))
            )
            await client.post("reward", json={"reward": 0.5})
        return recorded.trajectory(attempt)

    trajectory = run(play())
    assert len(trajectory.windows) == 2
    assert len(trajectory.turns) == 2


def test_a_retry_goes_on_from_the_answer_that_was_kept():
    recorded = Recorded(CALL, OTHER_CALL, ANSWER)

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            kept = said(await client.post("v1/chat/completions", json=chat(QUESTION)))
            await client.post("v1/chat/completions", json=chat(QUESTION))
            rest = chat(QUESTION, kept, result_of(kept))
            said(await client.post("v1/chat/completions", json=rest))
        return attempt

    assert run(play()).graph.parents() == [None, None, 0]


def test_compaction_reads_a_kept_answer_as_it_was_sampled():
    recorded = Recorded(CALL, ANSWER, OTHER_ANSWER)

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            messages = await searched(client)
            short = [{"role": "user", "content": "country ?"}, messages[-1], QUESTION]
            said(await client.post("v1/chat/completions", json=chat(*short)))
        return attempt

    graph = run(play()).graph
    assert graph.parents() == [None, 0, None]
    sampled = graph.calls[1].answer_ids
    compacted = graph.calls[2].prompt_ids
    assert any(compacted[i : i + len(sampled)] == sampled for i in range(len(compacted)))


@pytest.mark.parametrize("branches", [False, True])
def test_an_edited_answer_is_drift_or_a_branch_as_asked(branches):
    recorded = Recorded(
        CALL, ANSWER, OTHER_ANSWER, limits=replace(LIMITS, branches_on_edits=branches)
    )

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            messages = await searched(client)
            messages[-1]["content"] = "paris"
            edited = chat(*messages, QUESTION)
            answer = await client.post("v1/chat/completions", json=edited)
            after = await client.post("v1/chat/completions", json=chat(QUESTION))
            await client.post("reward", json={"reward": 1.0})
        return attempt, answer, after, recorded.trajectory(attempt)

    if branches:
        recorded.engine.actions.append(list(recorded.dialect.text_ids(CALL)))
        attempt, answer, _, trajectory = run(play())
        assert answer.status_code == 200
        assert attempt.graph.parents() == [None, 0, 0, None]
        assert attempt.foreign_messages == 1
        assert trajectory.finish_reason is FinishReason.ANSWERED
    else:
        attempt, answer, after, trajectory = run(play())
        assert answer.status_code == after.status_code == 409
        assert "'paris'" in answer.json()["error"]["message"]
        assert trajectory.finish_reason is FinishReason.DRIFTED
        assert trajectory.is_lost
        assert trajectory.reward == {}
        assert recorded.recorder.counts.lost[FinishReason.DRIFTED] == 1


def test_an_edited_call_is_known_by_its_id():
    recorded = Recorded(CALL, ANSWER)

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            messages = await searched(client)
            messages[1]["tool_calls"][0]["function"]["arguments"] = '{"query": "paris"}'
            moved = chat({"role": "user", "content": "country"}, *messages[1:3])
            return await client.post("v1/chat/completions", json=moved)

    answer = run(play())
    assert answer.status_code == 409
    assert "search" in answer.json()["error"]["message"]


def test_messages_in_another_order_begin_a_branch():
    recorded = Recorded(CALL, ANSWER, OTHER_ANSWER)

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            question, call, result, answer = await searched(client)
            turned = chat(question, answer, question, call, result)
            said(await client.post("v1/chat/completions", json=turned))
        return attempt

    attempt = run(play())
    assert attempt.graph.parents() == [None, 0, None]
    assert attempt.foreign_messages == 0


def test_a_stream_is_recorded_and_says_that_it_came_whole():
    recorded = Recorded(CALL)

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            asked = chat(QUESTION, stream=True, stream_options={"include_usage": True})
            return await client.post("v1/chat/completions", json=asked), attempt

    answer, attempt = run(play())
    first, last, usage = sse(answer)
    assert answer.headers["x-espalier-stream"] == "whole"
    assert first["choices"][0]["delta"]["tool_calls"][0]["function"]["name"] == "search"
    assert last["choices"][0]["finish_reason"] == "tool_calls"
    assert usage["usage"]["completion_tokens"] == len(attempt.graph.calls[0].answer_ids)
    assert answer.text.endswith("data: [DONE]\n\n")


def test_a_cut_answer_is_sent_as_text_and_goes_on():
    recorded = Recorded(CALL, ANSWER)

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            asked = chat(QUESTION, max_tokens=3)
            cut = await client.post("v1/chat/completions", json=asked)
            rest = chat(QUESTION, said(cut), QUESTION)
            said(await client.post("v1/chat/completions", json=rest))
        return cut.json()["choices"][0], attempt

    choice, attempt = run(play())
    assert choice["finish_reason"] == "length"
    assert attempt.graph.parents() == [None, 0]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"n": 2}, "n: one answer"),
        ({"stop": ["x"]}, "stop"),
        ({"logprobs": True}, "logprobs"),
        ({"tool_choice": "required"}, "tool_choice: a call cannot be forced"),
        ({"response_format": {"type": "json_object"}}, "response_format: is not supported"),
        ({"frequency_penalty": 1.0}, "frequency_penalty: is not supported"),
        ({"messages": [QUESTION, {"role": "assistant", "content": "x"}]}, "prefill"),
        ({"messages": [{"role": "assistant", "content": "x"}, QUESTION]}, "must begin"),
        (
            {"messages": [QUESTION, *[{"role": "assistant", "content": "x"}] * 2, QUESTION]},
            "two messages",
        ),
        ({"tools": [{"type": "function", "function": {"name": "fly"}}]}, "tools: fly"),
        ({"messages": [{"role": "user", "content": "lyon " * 400}]}, "shorten the conversation"),
    ],
)
def test_what_is_not_supported_is_refused_and_loses_nothing(fields, told):
    recorded = Recorded(CALL)

    async def play():
        attempt = recorded.recorder.begin()
        async with recorded.client(attempt) as client:
            body = {**chat(QUESTION), **fields}
            return await client.post("v1/chat/completions", json=body), attempt

    answer, attempt = run(play())
    assert answer.status_code == 400
    assert told in answer.json()["error"]["message"]
    assert attempt.lost is None
    assert len(attempt.graph) == 0

"""The responses and messages formats: the same conversation, the same tokens."""

import json

import pytest

from tests.unit.interop.recording.recorded import (
    ANSWER,
    CALL,
    QUESTION,
    RESULT,
    Recorded,
    played,
    posted,
    searched,
    sse,
)

SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}}
RESPONSES_TOOL = {"type": "function", "name": "search", "parameters": SCHEMA, "strict": True}
MESSAGES_TOOL = {"name": "search", "input_schema": SCHEMA}


async def by_chat(client):
    return (await searched(client))[-1]["content"]


async def by_responses(client, *, remembers=False):
    first = {"model": "m", "input": QUESTION["content"], "tools": [RESPONSES_TOOL]}
    answer = (await client.post("v1/responses", json=first)).json()
    reasoning, call = answer["output"]
    assert reasoning["summary"][0]["text"] == "country"
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": RESULT}
    second = {**first, "input": [QUESTION, reasoning, call, result]}
    if remembers:
        second |= {"input": [result], "previous_response_id": answer["id"]}
    ended = (await client.post("v1/responses", json=second)).json()
    assert ended["status"] == "completed", ended
    return ended["output"][-1]["content"][0]["text"]


async def by_messages(client):
    first = {"model": "m", "max_tokens": 64, "messages": [QUESTION], "tools": [MESSAGES_TOOL]}
    answer = (await client.post("v1/messages", json=first)).json()
    thinking, use = answer["content"]
    assert (thinking["thinking"], answer["stop_reason"]) == ("country", "tool_use")
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": RESULT}
    turns = [
        {"role": "assistant", "content": [thinking, use]},
        {"role": "user", "content": [result]},
    ]
    ended = await client.post("v1/messages", json={**first, "messages": [QUESTION, *turns]})
    assert ended.json()["stop_reason"] == "end_turn", ended.text
    return ended.json()["content"][-1]["text"]


async def by_remembered_responses(client):
    return await by_responses(client, remembers=True)


@pytest.mark.parametrize("play_by", [by_chat, by_responses, by_remembered_responses, by_messages])
def test_a_conversation_has_the_same_tokens_in_every_format(play_by):
    recorded, chatted = Recorded(CALL, ANSWER), Recorded(CALL, ANSWER)
    attempt, answer = played(recorded, play_by)
    assert answer == "france"
    assert attempt.graph.parents() == [None, 0]
    contexts = [session.context for session in recorded.engine.sessions]
    assert [[*one.prompt_ids, *one.answer_ids] for one in attempt.graph.calls] == contexts
    played(chatted, by_chat)
    assert chatted.engine.sessions[1].context == contexts[1]


def streamed(path, body, *says):
    return sse(posted(Recorded(*says), {**body, "stream": True}, path=path)[1][0])


def test_a_streamed_response_ends_with_the_whole():
    body = {"model": "m", "input": "country", "tools": [RESPONSES_TOOL]}
    events = streamed("v1/responses", body, CALL)
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.completed")
    done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    deltas = [one for one in events if one["type"] == "response.function_call_arguments.delta"]
    assert json.loads(deltas[0]["delta"]) == {"query": "lyon country"}


def test_a_streamed_message_is_made_of_its_blocks():
    body = {"model": "m", "max_tokens": 64, "messages": [QUESTION]}
    first, *between, delta, last = streamed("v1/messages", body, ANSWER)
    assert [one["type"] for one in (first, delta, last)] == [
        "message_start", "message_delta", "message_stop",
    ]  # fmt: skip
    texts = [one["delta"] for one in between if one["type"] == "content_block_delta"]
    assert texts[-1] == {"type": "text_delta", "text": "france"}
    assert delta["delta"]["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_object"}}}, "text"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools.0"),
        ({"previous_response_id": "resp_1"}, "no such response"),
        ({"input": []}, "must begin"),
        ({"input": [{"type": "image"}]}, "input.0"),
    ],
)
def test_what_responses_does_not_support_is_refused(fields, told):
    answer = refused("v1/responses", {"model": "m", "input": "country", **fields})
    assert told in answer["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"tool_choice": {"type": "any"}}, "a call cannot be forced"),
        ({"stop_sequences": ["x"]}, "stop_sequences"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0"),
        ({"messages": [QUESTION, {"role": "assistant", "content": "so"}]}, "prefill"),
    ],
)
def test_what_messages_does_not_support_is_refused(fields, told):
    body = {"model": "m", "max_tokens": 64, "messages": [QUESTION], **fields}
    answer = refused("v1/messages", body)
    assert (answer["type"], answer["error"]["type"]) == ("error", "invalid_request_error")
    assert told in answer["error"]["message"]


def refused(path, body):
    attempt, (answer,) = posted(Recorded(CALL), body, path=path)
    assert attempt.lost is None
    assert answer.status_code in (400, 404), answer.text
    return answer.json()

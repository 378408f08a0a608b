"""Native tool calls: what a server says becomes an action, or a fault with a name."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.completions import ChatEndpoint, EndpointFault, ToolNames, sent_message
from espalier.completions.chat import read_reply
from espalier.records import EngineError, Malformed, Message
from espalier.records.message import ToolCalls, ToolSpec
from tests.fakes.endpoint_double import Scripted, completion, config

ADD = ToolSpec(name="math.add", description="Add.", parameters={"type": "object"})
SECRET = "sk-very-secret-0123456789"


def calling(*calls):
    body = completion(None, finish_reason="tool_calls")
    body["choices"][0]["message"]["tool_calls"] = list(calls)
    return body


def call(arguments='{"a": 1}', name="math_add", call_id="c1"):
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def read(body):
    return read_reply(json.dumps(body).encode(), ToolNames([ADD]))


def asked(settings_, key=""):
    async def session():
        async def at_once(_seconds):
            pass

        async with ChatEndpoint(settings_, key, sleep=at_once) as chat:
            names = ToolNames([ADD])
            sent = [sent_message(Message(role="user", content="1 + 1?"))]
            return await chat.reply(sent, [ADD], names, temperature=0.0, seed=1), chat

    return asyncio.run(session())


def test_a_call_comes_back_by_the_name_of_its_tool(double):
    double.usual = Scripted(calling(call()))
    reply, chat = asked(config(double, prompt_price=1.0, completion_price=2.0))
    assert isinstance(reply.action, ToolCalls)
    (made,) = reply.action.calls
    assert (made.name, made.arguments, made.call_id) == ("math.add", {"a": 1}, "c1")
    body = double.seen[0][1]
    assert body["tools"][0]["function"]["name"] == "math_add"
    assert reply.message["tool_calls"][0]["function"]["name"] == "math_add"
    assert (reply.prompt_tokens, reply.completion_tokens) == (10, 5)
    assert chat.ledger.cost == pytest.approx(20e-6)


@pytest.mark.parametrize(
    "calls",
    [
        [call("{")], [call("[1]")], [call('{"a": NaN}')], [call("[" * 5000)], [{"id": "c1"}],
        *([call('{"a": ' + "[" * depth + "]" * depth + "}")] for depth in (64, 260, 900, 5000)),
        *([call('{"a": ' * depth + "1" + "}" * depth)] for depth in (65, 260, 900)),
        [call('{"a": 1e999}')], [call('{"a": "\\ud800"}')], [call('{"a": ' + "9" * 5000 + "}")],
        [call('{"a": "' + "x" * 100_000 + '"}')],
        ["add"], [call(name="")], [call()] * 200, "add(1)",
    ],
)  # fmt: skip
def test_calls_that_cannot_be_read_are_malformed(calls):
    body = calling()
    body["choices"][0]["message"]["tool_calls"] = calls
    reply = read(body)
    assert isinstance(reply.action, Malformed)
    assert reply.fault == "malformed_call"


def test_equal_or_missing_ids_of_calls_are_told_apart():
    reply = read(calling(call(), call(), call(call_id=None)))
    assert len({one.call_id for one in reply.action.calls}) == 3


def test_an_answer_that_is_none_says_why():
    assert read(completion("half", finish_reason="length")).fault == "truncated"
    assert read(completion("x", finish_reason="content_filter")).fault == "filtered"
    assert read(completion(None, refusal="no")).fault == "refused"
    assert read(completion("  ")).fault == "empty"
    assert read(completion("x" * 100_001)).fault == "too_long"
    assert read(completion("x" * 100_000)).fault == ""


def test_names_of_tools_stay_distinct_where_servers_allow_fewer_signs():
    tools = [ToolSpec(name=name) for name in ("a.b", "a_b", "x" * 80, "x" * 81)]
    names = ToolNames(tools)
    sent = [names.sent(tool.name) for tool in tools]
    assert len(set(sent)) == 4
    assert all(len(name) <= 64 for name in sent)
    assert [names.own(name) for name in sent] == [tool.name for tool in tools]


@pytest.mark.parametrize(
    ("scripted", "fields", "kind"),
    [
        (Scripted({"error": {"message": "busy"}}, 503), {}, "http_503"),
        (Scripted({"error": {"message": "too long"}}, 400), {}, "http_400"),
        (Scripted({"choices": []}), {}, "no_completion"),
        (Scripted({}, hangs=True), {"timeout_s": 0.2}, "timeout"),
        (Scripted(completion("2"), cut=True), {}, "connection"),
    ],
)
def test_a_request_without_an_answer_says_its_kind(double, scripted, fields, kind):
    double.usual = scripted
    with pytest.raises(EndpointFault) as fault:
        asked(config(double, attempts=2, asks=2, **fields))
    assert fault.value.kind == kind


def test_a_refused_key_ends_everything_and_is_not_repeated(double):
    double.usual = Scripted({"error": {"message": f"bad key {SECRET}"}}, 401)
    with pytest.raises(EngineError, match="check the key") as error:
        asked(config(double), SECRET)
    assert not isinstance(error.value, EndpointFault)
    assert SECRET not in str(error.value)
    assert double.seen[0][2] == f"Bearer {SECRET}"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(JSON, JSON)
def test_reading_a_reply_never_raises(calls, arguments):
    body = calling(call(arguments), *(calls if isinstance(calls, list) else []))
    for text in (json.dumps(body), json.dumps(calls), json.dumps({"choices": [calls]})):
        read_reply(text.encode(), ToolNames([ADD]))

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.records import Message, ToolCall
from espalier.records.message import ToolSpec
from espalier.wire.requests import ChatRequest, CompletionRequest, Refusal, parse

KINDS = (CompletionRequest, ChatRequest)
COMPLETION = {"model": "m", "prompt": "x"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


CALL = {"id": "7", "type": "function", "function": {"name": "search", "arguments": '{"a": [1]}'}}


def completion(**changes):
    return parse(json.dumps({**COMPLETION, **changes}).encode(), CompletionRequest)


def chat(**changes):
    return parse(json.dumps({**CHAT, **changes}).encode(), ChatRequest)


@pytest.mark.parametrize(
    ("prompt", "read"),
    [("a", ("a",)), ([1, 2], ((1, 2),)), (["a", "b"], ("a", "b")), ([[1], [2]], ((1,), (2,)))],
)
def test_a_prompt_is_text_or_token_ids_or_several(prompt, read):
    assert completion(prompt=prompt).prompt == read


@pytest.mark.parametrize("prompt", ["", [], [[]], ["a", 1], {"a": 1}, 7, [1.5], [True]])
def test_what_is_no_prompt_is_refused_by_name(prompt):
    with pytest.raises(Refusal, match="prompt: ") as refused:
        completion(prompt=prompt)
    assert (refused.value.status, refused.value.param) == (400, "prompt")


@pytest.mark.parametrize(
    "changes",
    [
        {"max_tokens": 0}, {"max_tokens": "5"}, {"temperature": 2.1}, {"temperature": -0.1},
        {"top_p": 0}, {"n": 0}, {"seed": 1 << 63}, {"stop": [""]}, {"stop": ["x"] * 17},
        {"stream": "yes"}, {"echo": True}, {"frequency_penalty": 0.5}, {"logit_bias": {"5": 100}},
        {"best_of": 2}, {"stream_options": {"include_usage": True}}, {"no_such_field": 1},
    ],
)  # fmt: skip
def test_a_field_that_is_wrong_or_not_supported_is_named(changes):
    with pytest.raises(Refusal) as refused:
        completion(**changes)
    (name,) = changes
    assert refused.value.status == 400
    assert name in str(refused.value)


@pytest.mark.parametrize(
    ("request_of", "fields", "param"),
    [
        (chat, {"logprobs": True, "top_logprobs": 5}, "top_logprobs"),
        (completion, {"logprobs": 5}, "logprobs"),
    ],
)
def test_other_tokens_logprobs_are_refused_in_openais_form(request_of, fields, param):
    with pytest.raises(Refusal, match=f"^{param}: ") as refused:
        request_of(**fields)
    assert refused.value.body()["error"] == {
        "message": str(refused.value),
        "type": "invalid_request_error",
        "param": param,
        "code": None,
    }


def test_fields_that_ask_for_nothing_are_passed_over():
    asked = completion(
        user="me", echo=False, best_of=1, frequency_penalty=0, logit_bias={}, suffix=None, stop=None
    )
    assert asked == completion()


def test_messages_are_handed_to_the_template_as_plain_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    answer = {"role": "tool", "content": "c", "tool_call_id": "7"}
    silent = {"role": "assistant", "content": None, "refusal": None, "tool_calls": []}
    asked = chat(messages=[{"role": "user", "content": parts}, silent, answer])
    assert [message.for_template() for message in asked.messages] == [
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": ""},
        answer,
    ]


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "user"}],
        [{"role": "king", "content": "x"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "user", "content": "x", "tool_calls": [CALL]}],
        [{"role": "tool", "content": "x", "reasoning_content": "y"}],
        [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}],
        [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "a"}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "["}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "[]"}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "", "arguments": "{}"}}]}],
        [{"role": "assistant", "tool_calls": [CALL] * 65}],
        "hello",
    ],
)
def test_messages_that_could_not_be_written_again_are_refused(messages):
    with pytest.raises(Refusal, match="messages") as refused:
        chat(messages=messages)
    assert refused.value.status == 400


TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}


def function(**fields):
    return {"type": "function", "function": {"name": "search", **fields}}


def test_tools_are_read_as_what_a_dialect_takes():
    schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    asked = chat(tools=[function(description="Look.", parameters=schema, strict=False)])
    (spec,) = (tool.spec() for tool in asked.tools)
    assert spec == ToolSpec(name="search", description="Look.", parameters=schema)
    assert asked.speaks_of_tools
    assert not chat(tools=None, tool_choice=None, parallel_tool_calls=None).speaks_of_tools


@pytest.mark.parametrize(
    "tools",
    [
        [{"type": "retrieval"}], [{"type": "function"}], [function(name="two words")],
        [function(name="a" * 65)], [function(strict=True)], [function(parameters=[])],
        [function(parameters={"type": "string"})], [function(parameters={"properties": []})],
        [function(parameters={"properties": {"a": 1}})], [function(parameters={"required": "a"})],
        [function(parameters={"required": [1]})], [TOOL, TOOL],
        [function(name=f"f{n}") for n in range(129)], "search",
    ],
)  # fmt: skip
def test_what_is_no_tool_is_refused_by_name(tools):
    with pytest.raises(Refusal, match=r"^tools") as refused:
        chat(tools=tools)
    assert refused.value.status == 400
    assert len(chat(tools=[function(name=f"f{n}") for n in range(128)]).tools) == 128


@pytest.mark.parametrize("choice", ["required", {"type": "function"}, "any", 1])
def test_a_choice_that_forces_a_call_is_refused(choice):
    with pytest.raises(Refusal, match="tool_choice"):
        chat(tools=[TOOL], tool_choice=choice)


def test_calls_and_results_of_before_become_messages():
    asked = chat(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "7", "content": "found"},
            {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
            {"role": "assistant", "content": "x", "tool_calls": [CALL], "reasoning_content": "y"},
            {"role": "assistant", "content": "done", "reasoning_content": "z"},
        ]
    )
    call = ToolCall(name="search", arguments={"a": [1]}, call_id="7")
    assert asked.speaks_of_tools
    assert [message.as_message() for message in asked.messages] == [
        Message(role="system", content="Be brief."),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", content="found", call_id="7"),
        Message(role="assistant", thought="I look.", tool_calls=(call,)),
        Message(role="assistant", thought="y", tool_calls=(call,)),
        Message(role="assistant", content="done", thought="z"),
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", b'{"model": "m", "prompt": "x", "temperature": NaN}',
        b'{"model": "m", "prompt": "x", "temperature": 1e999}',
        b'{"model": "m", "prompt": "\\ud800"}', b'{"model": "m", "prompt": "\xff"}',
        b'{"a":' * 100_000, b'{"model": "m", "prompt": [' + b"9" * 5000 + b"]}",
    ],
)  # fmt: skip
def test_a_body_that_is_no_request_is_refused(body):
    for kind in KINDS:
        with pytest.raises(Refusal) as refused:
            parse(body, kind)
        assert refused.value.status == 400
        assert len(str(refused.value)) < 1000


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
NAMES = st.sampled_from(sorted({*CompletionRequest.model_fields, *ChatRequest.model_fields}))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(KINDS), st.dictionaries(NAMES, JSON, max_size=6), st.booleans())
def test_whatever_is_sent_is_a_request_or_refused(kind, fields, is_whole):
    body = json.dumps({**(COMPLETION if kind is CompletionRequest else CHAT), **fields})
    sent = body.encode() if is_whole else body.encode()[: len(body) // 2]
    with suppress(Refusal):
        asked = parse(sent, kind)
        assert asked.n >= 1
        assert 0 <= asked.temperature <= 2


ARGUMENTS = JSON.map(json.dumps) | st.text(max_size=8)
FUNCTIONS = st.fixed_dictionaries(
    {"name": st.sampled_from(["search", "a b", ""])},
    optional={"arguments": ARGUMENTS, "parameters": JSON, "description": JSON, "strict": JSON},
)
TOOL_PARTS = st.fixed_dictionaries(
    {}, optional={"id": JSON, "type": st.just("function") | JSON, "function": FUNCTIONS | JSON}
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "developer"])},
    optional={
        "content": st.text(max_size=8) | JSON,
        "tool_calls": st.lists(TOOL_PARTS, max_size=3) | JSON,
        "reasoning_content": JSON,
        "tool_call_id": JSON,
    },
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(MESSAGES, max_size=3),
    st.lists(TOOL_PARTS, max_size=3) | JSON,
    st.sampled_from(["auto", "none", "required", None]) | JSON,
)
def test_whatever_is_sent_of_tools_is_read_or_refused(messages, tools, choice):
    fields = {"messages": messages, "tools": tools, "tool_choice": choice}
    with suppress(Refusal):
        asked = chat(**fields)
        for message in asked.messages:
            assert message.as_message().role in ("system", "user", "assistant", "tool")
        names = [tool.spec().name for tool in asked.tools]
        assert len(names) == len(set(names))


STREAMED = {**CALL, "index": 0}
REPLAYED = (
    {"tool_calls": [STREAMED]},
    {"tool_calls": [CALL], "annotations": []},
    {"tool_calls": [CALL], "refusal": None, "audio": None, "function_call": None, "parsed": None},
    {"tool_calls": [{**STREAMED, "cache_control": {"type": "ephemeral"}}], "index": 0},
    {"content": "", "tool_calls": [CALL], "logprobs": None},
    {"content": [{"type": "text", "text": "", "annotations": []}], "tool_calls": [CALL]},
)


@pytest.mark.parametrize("replayed", REPLAYED)
def test_an_answer_is_read_as_a_client_sends_it_back(replayed):
    """Also as it was streamed, and with what OpenAI's own answers have."""
    plain = chat(messages=[{"role": "assistant", "content": "", "tool_calls": [CALL]}])
    again = chat(messages=[{"role": "assistant", "content": "", **replayed}])
    assert [one.as_message() for one in again.messages] == [
        one.as_message() for one in plain.messages
    ]


def test_a_replayed_field_that_would_change_it_is_refused():
    with pytest.raises(Refusal, match="function_call"):
        chat(messages=[{"role": "assistant", "content": "", "function_call": {"name": "f"}}])


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (406, "invalid_request_error"),
        (409, "invalid_request_error"),
        (410, "invalid_request_error"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (502, "server_error"),
        (503, "service_unavailable_error"),
    ],
)
def test_only_a_fault_of_the_server_is_called_one(status, kind):
    assert Refusal(status, "no").body()["error"]["type"] == kind

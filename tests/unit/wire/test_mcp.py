"""Messages of MCP servers: well-formed ones are read, all others are one error."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.wire.mcp import (
    Called,
    Initialized,
    ListedTools,
    MessageFault,
    RpcError,
    answer_to,
    parsed,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=12,
)
KEYS = st.sampled_from(
    ["jsonrpc", "id", "result", "error", "content", "tools", "isError", "text", "type", "code"]
)


def test_a_result_and_an_error_are_told_apart():
    told = {"jsonrpc": "2.0", "id": 3, "result": {"content": []}}
    assert answer_to(3, json.dumps(told)) == {"content": []}
    refused = {"jsonrpc": "2.0", "id": 3, "error": {"code": -1, "message": "no"}}
    assert answer_to(3, json.dumps(refused)) == RpcError(code=-1, message="no")


@pytest.mark.parametrize(
    "text",
    [
        "[]", "{", b"\xff", '{"jsonrpc": "2.0", "id": 4, "result": {}}',
        '{"id": 3, "result": {}}', '{"jsonrpc": "2.0", "id": 3}',
        '{"jsonrpc": "2.0", "id": 3, "result": []}', "[" * 100_000,
    ],
)  # fmt: skip
def test_anything_else_is_a_fault(text):
    with pytest.raises(MessageFault):
        answer_to(3, text)


@given(st.dictionaries(KEYS | st.text(max_size=6), JSON), st.sampled_from([3, "3", None]))
@settings(max_examples=80, deadline=None)
def test_no_message_is_more_than_a_fault(message, number):
    text = json.dumps({"jsonrpc": "2.0", "id": number, **message})
    with suppress(MessageFault):
        found = answer_to(3, text)
        if not isinstance(found, RpcError):
            for kind in (Called, Initialized, ListedTools):
                parsed(found, kind)


@given(JSON)
@settings(max_examples=80, deadline=None)
def test_no_result_is_more_than_a_fault(value):
    for kind in (Called, Initialized, ListedTools, RpcError):
        with suppress(MessageFault):
            found = parsed(value, kind)
            assert not isinstance(found, Called) or isinstance(found.shown(), str)


def test_parts_that_are_no_text_are_named():
    parts = [
        {"type": "text", "text": "a"},
        {"type": "image", "data": "...", "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "file:///x", "text": "inside"}},
        {"type": "resource_link", "uri": "file:///y"},
    ]
    called = parsed({"content": parts}, Called)
    assert called.shown() == "a\n(image)\ninside\n(resource_link file:///y)"
    assert parsed({"structuredContent": {"n": 1}}, Called).shown() == '{"n": 1}'

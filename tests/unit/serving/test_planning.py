"""From requests to prompts and answers: bounds, defaults and seeds."""

import pytest

from espalier.config import ServingConfig
from espalier.serving.planning import plan
from espalier.serving.served_policy import ServedPolicy
from espalier.serving.source import Source
from espalier.wire.requests import ChatRequest, CompletionRequest, Refusal
from tests.factories.tiny import TOOLS, tiny_tokenizer

POLICY = ServedPolicy(
    source=Source(names=("tiny",), created=0, described={}),
    tokenizer=tiny_tokenizer(),
    engine=None,
    vocabulary=400,
    context=40,
)
CALL = {"function": {"name": "search", "arguments": '{"query": "lyon"}'}}
QUESTION = [{"role": "user", "content": "lyon"}]
PAST = [*QUESTION, {"role": "assistant", "tool_calls": [CALL]}]


def planned(request):
    return plan(request, POLICY, ServingConfig(), lambda: 77)


def chat(**fields):
    return planned(ChatRequest.model_validate({"model": "tiny", "messages": QUESTION, **fields}))


def test_orders_follow_the_request():
    asked = {"model": "tiny", "prompt": [20, 21], "stop": ["a", "b"], "stop_token_ids": [7]}

    def order(**fields):
        return planned(CompletionRequest.model_validate(asked | fields)).orders[0]

    found = order(top_k=-1, ignore_eos=True, stream=True)
    assert (found.stops, found.kept_stops, found.stop_ids) == (("a", "b"), (), frozenset({7}))
    assert found.sampling.top_k == 0
    assert found.ignores_end
    assert found.in_pieces
    kept = order(include_stop_str_in_output=True)
    assert (kept.stops, kept.kept_stops) == ((), ("a", "b"))
    assert not kept.in_pieces


def test_tools_bring_the_stops_of_the_dialect():
    offered = [tool.as_function() for tool in TOOLS]
    told = chat(tools=offered, stop_token_ids=[7], max_tokens=1)
    ends = {tiny_tokenizer().convert_tokens_to_ids(t) for t in ("</search>", "</answer>")}
    assert told.orders[0].stop_ids >= {7, *ends}
    assert told.dialect.tools[0].name == "search"
    assert chat(messages=PAST, tools=offered, max_tokens=1).dialect is not None
    assert chat(max_tokens=1).dialect is None


def test_earlier_calls_of_tools_that_are_not_offered_are_refused():
    with pytest.raises(Refusal, match="search"):
        chat(messages=PAST)

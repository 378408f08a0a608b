"""From requests to prompts and answers: bounds, defaults and seeds."""

import pytest

from espalier.config import ServingConfig
from espalier.serving.planning import plan
from espalier.serving.served_policy import ServedPolicy
from espalier.serving.source import Source
from espalier.wire.requests import ChatRequest, CompletionRequest, Refusal
from tests.factories.tiny import TOOLS, tiny_tokenizer

CONTEXT, VOCABULARY, NEW_SEED = 40, 400, 77
POLICY = ServedPolicy(
    source=Source(names=("tiny", "models:/tiny/1"), created=0, described={}),
    tokenizer=tiny_tokenizer(),
    engine=None,
    vocabulary=VOCABULARY,
    context=CONTEXT,
)
CONFIG = ServingConfig(max_choices=4)
QUESTION = [{"role": "user", "content": "lyon"}]


def planned(request):
    return plan(request, POLICY, CONFIG, lambda: NEW_SEED)


def completion(prompt=(20, 21), **fields):
    return planned(
        CompletionRequest.model_validate({"model": "tiny", "prompt": list(prompt), **fields})
    )


def chat(**fields):
    return planned(ChatRequest.model_validate({"model": "tiny", "messages": QUESTION, **fields}))


def test_another_model_is_refused_with_the_names_served():
    with pytest.raises(Refusal, match=r"'gpt' is not served here; ask for tiny or models:/tiny/1"):
        completion(model="gpt")


@pytest.mark.parametrize(("prompt", "wrong"), [([20, VOCABULARY], VOCABULARY), ([20, -1], -1)])
def test_token_ids_outside_the_vocabulary_are_refused(prompt, wrong):
    with pytest.raises(
        Refusal, match=f"{wrong} is no token id; ids of this policy are below {VOCABULARY}"
    ):
        completion(prompt)
    assert completion([0, VOCABULARY - 1]).prompts == ((0, VOCABULARY - 1),)


def test_prompts_and_answers_of_a_request_are_bounded():
    assert len(completion([[20]] * 4).orders) == 4
    assert len(completion([[20]] * 2, n=2).orders) == 4
    with pytest.raises(Refusal, match="at most 4 prompts"):
        completion([[20]] * 5)
    with pytest.raises(Refusal, match="at most 4 answers"):
        completion([[20]] * 3, n=2)


def test_a_prompt_and_its_answer_may_fill_the_context():
    (order,) = completion([20] * 10, max_tokens=CONTEXT - 10).orders
    assert order.max_tokens == CONTEXT - 10
    with pytest.raises(
        Refusal, match="10 tokens of the prompt and 31 of the answer exceed the context of 40"
    ):
        completion([20] * 10, max_tokens=CONTEXT - 9)
    with pytest.raises(Refusal, match="40 tokens of the prompt and 1 of the answer"):
        completion([20] * CONTEXT)


def test_a_completion_has_16_tokens_by_default():
    assert completion([20] * 10).orders[0].max_tokens == 16
    assert completion([20] * 30).orders[0].max_tokens == 10


def test_a_chat_fills_the_context_by_default():
    whole = chat()
    assert whole.orders[0].max_tokens == CONTEXT - len(whole.prompts[0])
    assert chat(max_tokens=3).orders[0].max_tokens == 3
    assert chat(max_tokens=3, max_completion_tokens=5).orders[0].max_tokens == 5


def test_only_the_first_answer_has_the_requests_own_seed():
    seeds = [order.sampling.seed for order in completion([[20], [21]], n=2, seed=5).orders]
    assert seeds[0] == 5
    assert len(set(seeds)) == 4
    again = [order.sampling.seed for order in completion([[20], [21]], n=2, seed=5).orders]
    assert seeds == again
    assert completion(seed=0).orders[0].sampling.seed == 0
    assert completion().orders[0].sampling.seed == NEW_SEED


def test_orders_follow_the_request():
    stop = {"stop": ["a", "b"], "stop_token_ids": [7]}
    (order,) = completion(**stop, top_k=-1, ignore_eos=True, stream=True).orders
    assert (order.stops, order.kept_stops, order.stop_ids) == (("a", "b"), (), frozenset({7}))
    assert order.sampling.top_k == 0
    assert order.ignores_end
    assert order.in_pieces
    (kept,) = completion(**stop, include_stop_str_in_output=True).orders
    assert (kept.stops, kept.kept_stops) == ((), ("a", "b"))
    assert not kept.in_pieces


def test_prompt_tokens_count_each_prompt_once():
    assert completion([[20, 21], [22]], n=2).prompt_tokens == 3


def test_tools_bring_the_stops_of_the_dialect():
    offered = [tool.as_function() for tool in TOOLS]
    told = chat(tools=offered, stop_token_ids=[7], max_tokens=1)
    ends = {tiny_tokenizer().convert_tokens_to_ids(t) for t in ("</search>", "</answer>")}
    assert told.orders[0].stop_ids >= {7, *ends}
    assert told.dialect.tools[0].name == "search"
    call = {"function": {"name": "search", "arguments": '{"query": "lyon"}'}}
    past = [*QUESTION, {"role": "assistant", "tool_calls": [call]}]
    assert chat(messages=past, tools=offered, max_tokens=1).dialect is not None
    assert chat(max_tokens=1).dialect is None


def test_earlier_calls_without_tools_are_rendered_and_nothing_is_parsed():
    call = {"function": {"name": "search", "arguments": '{"query": "lyon"}'}}
    past = [*QUESTION, {"role": "assistant", "tool_calls": [call]}]
    with pytest.raises(Refusal, match="search, which is no tool; tools: none"):
        chat(messages=past)

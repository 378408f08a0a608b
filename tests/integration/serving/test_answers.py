"""What the endpoint answers is what the engine samples, whoever asks and however."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from espalier.rollout.engines.engine import Sampling
from tests.factories.tiny import tiny_tokenizer
from tests.integration.serving.live import CONTEXT, SEED, events, listening_endpoint, lockstep

PROMPT = list(range(20, 40))
QUESTION = [{"role": "user", "content": "what is the currency of lyon"}]
TOKENS = {"max_tokens": 12, "return_token_ids": True}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def client():
    with listening_endpoint(lockstep()) as client:
        yield client


def sampled(prompt_ids, **sampling):
    """The action that the engine itself samples."""

    async def sample():
        engine = lockstep()
        async with engine.serving():
            drawing = Sampling(**{"temperature": 1.0, "seed": SEED, **sampling})
            session = await engine.open(prompt_ids, drawing)
            return await session.sample(max_tokens=12)

    return asyncio.run(sample())


def complete(client, **fields):
    answer = client.post(TEXT, json={"model": "tiny", "prompt": PROMPT, **TOKENS, **fields})
    assert answer.status_code == 200, answer.text
    return answer


def joined(pieces):
    return [token_id for piece in pieces for token_id in piece["token_ids"]]


@pytest.mark.parametrize(
    "drawing", [{}, {"temperature": 0.0}, {"seed": 5, "top_p": 0.7}, {"seed": -3, "top_k": 3}]
)
def test_tokens_and_logprobs_are_those_that_the_engine_samples(client, drawing):
    (choice,) = complete(client, logprobs=0, **drawing).json()["choices"]
    expected = sampled(PROMPT, **drawing)
    assert choice["token_ids"] == list(expected.token_ids)
    assert choice["prompt_token_ids"] == PROMPT
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected.logprobs, abs=1e-5)
    assert choice["text"] == tiny_tokenizer().decode(choice["token_ids"], skip_special_tokens=True)


def test_a_stream_says_the_same_as_an_answer_at_once(client):
    (whole,) = complete(client, logprobs=0).json()["choices"]
    pieces = [event["choices"][0] for event in events(complete(client, logprobs=0, stream=True))]
    assert len(pieces) > 1
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    assert joined(pieces) == whole["token_ids"]
    assert [piece["finish_reason"] for piece in pieces if piece["finish_reason"]] == ["length"]
    assert [piece["prompt_token_ids"] for piece in pieces if "prompt_token_ids" in piece] == [
        PROMPT
    ]


def test_a_chat_goes_on_from_the_policys_own_template(client):
    asked = {"model": "tiny", "messages": QUESTION, "logprobs": True, **TOKENS}
    body = client.post(CHAT, json=asked).json()
    template = tiny_tokenizer().apply_chat_template(
        QUESTION, add_generation_prompt=True, tokenize=False
    )
    prompt_ids = tiny_tokenizer().encode(template, add_special_tokens=False)
    assert body["prompt_token_ids"] == prompt_ids
    (choice,) = body["choices"]
    assert choice["token_ids"] == list(sampled(prompt_ids).token_ids)
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])
    assert body["usage"] == {
        "prompt_tokens": len(prompt_ids),
        "completion_tokens": 12,
        "total_tokens": len(prompt_ids) + 12,
    }
    streamed = client.post(CHAT, json={**asked, "stream": True})
    deltas = [event["choices"][0]["delta"] for event in events(streamed)]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(d["content"] for d in deltas) == choice["message"]["content"]


def test_a_trajectory_continues_in_token_ids_without_being_tokenised_again(client):
    first = complete(client).json()["choices"][0]
    observed = [60, 61, 62]
    context = [*PROMPT, *first["token_ids"], *observed]
    second = complete(client, prompt=context).json()["choices"][0]
    assert second["prompt_token_ids"] == context
    assert second["token_ids"] == list(sampled(context).token_ids)


def test_many_clients_at_once_get_what_each_would_get_alone(client):
    def ask(seed):
        return complete(client, seed=seed, stream=seed % 2 == 0)

    def token_ids(answer):
        if answer.headers["content-type"].startswith("text/event-stream"):
            return joined(event["choices"][0] for event in events(answer))
        return answer.json()["choices"][0]["token_ids"]

    with ThreadPoolExecutor(24) as clients:
        together = [token_ids(answer) for answer in clients.map(ask, range(24))]
    assert together == [list(sampled(PROMPT, seed=seed).token_ids) for seed in range(24)]


def test_several_prompts_and_several_answers_to_each(client):
    body = complete(client, prompt=[PROMPT, [50, 51]], n=3, seed=4).json()
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert [len(choice["prompt_token_ids"]) for choice in body["choices"]] == [20] * 3 + [2] * 3
    assert len({tuple(choice["token_ids"]) for choice in body["choices"]}) == 6
    assert body["usage"]["prompt_tokens"] == 22
    assert body["usage"]["completion_tokens"] == 72
    streamed = events(complete(client, prompt=[PROMPT, [50, 51]], n=3, seed=4, stream=True))
    for choice in body["choices"]:
        pieces = [e["choices"][0] for e in streamed if e["choices"][0]["index"] == choice["index"]]
        assert joined(pieces) == choice["token_ids"]


def test_a_stop_text_ends_the_answer_before_itself(client):
    text = complete(client).json()["choices"][0]["text"]
    stop = text[len(text) // 2 :][:3]
    for stream in (False, True):
        answer = complete(client, stop=[stop], stream=stream)
        choices = [e["choices"][0] for e in events(answer)] if stream else answer.json()["choices"]
        said = "".join(choice["text"] for choice in choices)
        assert said == text[: text.index(stop)]
        assert choices[-1]["finish_reason"] == "stop"


def test_stop_tokens_of_the_policy_end_an_answer_unless_ignored():
    fourth = sampled(PROMPT).token_ids[3]
    with listening_endpoint(lockstep(stop_ids=[fourth])) as client:
        (ended,) = complete(client).json()["choices"]
        (went_on,) = complete(client, ignore_eos=True).json()["choices"]
    assert ended["token_ids"][-1] == fourth
    assert ended["finish_reason"] == "stop"
    assert went_on["token_ids"] == list(sampled(PROMPT).token_ids)


def test_usage_comes_with_a_stream_where_it_is_asked_for(client):
    answer = complete(client, stream=True, stream_options={"include_usage": True})
    assert events(answer)[-1]["usage"]["completion_tokens"] == 12


def test_a_chat_may_fill_the_context_and_no_more(client):
    asked = {"model": "tiny", "messages": QUESTION, "seed": 1}
    usage = client.post(CHAT, json=asked).json()["usage"]
    assert usage["total_tokens"] == CONTEXT
    for fields in ({"max_tokens": CONTEXT}, {"max_completion_tokens": CONTEXT}):
        refused = client.post(CHAT, json={**asked, **fields})
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"


def test_the_models_are_listed_under_every_name(client):
    listed = client.get("/v1/models").json()["data"]
    assert [entry["id"] for entry in listed] == ["tiny", "models:/tiny/1"]
    assert client.get("/v1/models/models:/tiny/1").json()["version"] == "1"
    assert client.get("/v1/models/other").status_code == 404
    assert complete(client, model="models:/tiny/1").json()["model"] == "models:/tiny/1"


def test_the_openai_package_reads_every_kind_of_answer(client):
    openai = pytest.importorskip("openai", reason="the openai package is not installed")
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as api:
        assert [model.id for model in api.models.list()] == ["tiny", "models:/tiny/1"]
        whole = api.chat.completions.create(
            model="tiny", messages=QUESTION, max_completion_tokens=12, seed=3, logprobs=True
        )
        assert whole.choices[0].finish_reason == "length"
        assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens == 12
        stream = api.chat.completions.create(
            model="tiny", messages=QUESTION, max_completion_tokens=12, seed=3, stream=True
        )
        said = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert said == whole.choices[0].message.content
        text = api.completions.create(
            model="tiny", prompt=PROMPT, max_tokens=4, extra_body={"return_token_ids": True}
        )
        assert len(text.choices[0].token_ids) == 4
        with pytest.raises(openai.NotFoundError, match="not served here"):
            api.completions.create(model="gpt", prompt="x")
        with pytest.raises(openai.BadRequestError, match="frequency_penalty"):
            api.completions.create(model="tiny", prompt="x", frequency_penalty=1.0)

"""What the endpoint answers is what the engine samples, whoever asks and however."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from espalier.rollout.engines.engine import Sampling
from tests.factories.tiny import tiny_tokenizer
from tests.integration.serving.live import SEED, events, listening_endpoint, lockstep

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
    streamed = client.post(CHAT, json={**asked, "stream": True})
    deltas = [event["choices"][0]["delta"] for event in events(streamed)]
    assert "".join(d["content"] for d in deltas) == choice["message"]["content"]


def test_a_trajectory_continues_in_token_ids_without_being_tokenised_again(client):
    first = complete(client).json()["choices"][0]
    context = [*PROMPT, *first["token_ids"], 60, 61, 62]
    second = complete(client, prompt=context).json()["choices"][0]
    assert second["prompt_token_ids"] == context
    assert second["token_ids"] == list(sampled(context).token_ids)


def test_many_clients_at_once_get_what_each_would_get_alone(client):
    def ask(seed):
        return complete(client, seed=seed, stream=seed % 2 == 0)

    def token_ids(answer):
        if answer.headers["content-type"].startswith("text/event-stream"):
            return [i for event in events(answer) for i in event["choices"][0]["token_ids"]]
        return answer.json()["choices"][0]["token_ids"]

    with ThreadPoolExecutor(24) as clients:
        together = [token_ids(answer) for answer in clients.map(ask, range(24))]
    assert together == [list(sampled(PROMPT, seed=seed).token_ids) for seed in range(24)]


def test_the_openai_package_reads_every_kind_of_answer(client):
    openai = pytest.importorskip("openai", reason="the openai package is not installed")
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as api:
        assert [model.id for model in api.models.list()] == ["tiny", "models:/tiny/1"]
        asked = {"model": "tiny", "messages": QUESTION, "max_completion_tokens": 12, "seed": 3}
        whole = api.chat.completions.create(**asked, logprobs=True)
        assert whole.choices[0].finish_reason == "length"
        assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens == 12
        stream = api.chat.completions.create(**asked, stream=True)
        said = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert said == whole.choices[0].message.content
        text = api.completions.create(
            model="tiny", prompt=PROMPT, max_tokens=4, extra_body={"return_token_ids": True}
        )
        assert len(text.choices[0].token_ids) == 4
        with pytest.raises(openai.NotFoundError):
            api.completions.create(model="gpt", prompt="x")
        with pytest.raises(openai.BadRequestError, match="frequency_penalty"):
            api.completions.create(model="tiny", prompt="x", frequency_penalty=1.0)

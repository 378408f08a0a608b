"""The endpoint over an engine that writes the same words: what is answered, counted and refused."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import httpx2
import pytest

from espalier.config import ServingConfig
from espalier.rollout.engines.engine import Completion, EngineCounters
from espalier.serving.app import Admission, Endpoint
from espalier.serving.engine_thread import EngineThread
from espalier.serving.planning import new_seed
from espalier.serving.served_policy import ServedPolicy
from espalier.serving.source import Source
from espalier.wire.requests import Refusal
from tests.factories.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
WORDS = tuple(TOKENIZER.encode("country currency answer lookup", add_special_tokens=False))
CONTEXT = 64
CONFIG = ServingConfig(rows=2, max_waiting=3, max_choices=4, max_context=CONTEXT)
COMPLETION = {"model": "tiny", "prompt": [5, 6, 7]}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "country"}]}


class Words:
    """Sessions that write the words again and again; each ends itself after `ends_after` tokens."""

    policy_version = 0
    counters = EngineCounters()
    ends_after = 10**6
    fault = None

    def __init__(self):
        self.opened = []
        self.asked = []

    @asynccontextmanager
    async def serving(self):
        yield

    async def open(self, prompt_ids, sampling):
        self.opened.append((tuple(prompt_ids), sampling))
        return _Session(self)


class _Session:
    def __init__(self, engine):
        self._engine, self._written = engine, 0

    async def sample(self, *, max_tokens):
        await asyncio.sleep(0)
        self._engine.asked.append(max_tokens)
        if self._engine.fault:
            raise self._engine.fault
        count = min(max_tokens, self._engine.ends_after - self._written)
        ids = tuple(WORDS[(self._written + i) % len(WORDS)] for i in range(count))
        self._written += count
        return Completion(ids, (-1.0,) * count, self._written >= self._engine.ends_after)

    def close(self):
        pass


class Served:
    """An endpoint in this process, asked over its ASGI interface."""

    def __init__(self, engine, config=CONFIG):
        source = Source(names=("tiny", "models:/tiny/3"), created=7, described={"version": "3"})
        self.engine, self.writer = engine, EngineThread(engine)
        self.policy = ServedPolicy(
            source=source, tokenizer=TOKENIZER, engine=engine, vocabulary=400, context=CONTEXT
        )
        self.endpoint = Endpoint(config, lambda: 11)
        self.app = self.endpoint.app()

    def ask(self, method, path, body=None, headers=None):
        async def asked():
            transport = httpx2.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx2.AsyncClient(transport=transport, base_url="http://e") as client:
                kind = {"content-type": "application/json"} if body is not None else {}
                content = None if body is None else body
                if isinstance(content, dict):
                    content = json.dumps(content).encode()
                return await client.request(
                    method, path, content=content, headers={**kind, **(headers or {})}
                )

        return asyncio.run(asked())

    def complete(self, **changes):
        return self.ask("POST", "/v1/completions", COMPLETION | changes)

    def chat(self, **changes):
        return self.ask("POST", "/v1/chat/completions", CHAT | changes)


@pytest.fixture
def engine():
    return Words()


@pytest.fixture
def served(engine):
    server = Served(engine)
    server.writer.start()
    server.endpoint.serve(server.policy, server.writer)
    yield server
    server.writer.stop()


def events(response):
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [line.removeprefix("data: ") for line in lines]


def test_a_completion_says_what_was_written_and_used(served, engine):
    answer = served.complete(max_tokens=3, return_token_ids=True, logprobs=0)
    (choice,) = answer.json()["choices"]
    assert answer.status_code == 200
    assert choice["text"] == TOKENIZER.decode(WORDS[:3])
    assert (choice["index"], choice["finish_reason"]) == (0, "length")
    assert choice["token_ids"] == list(WORDS[:3])
    assert choice["prompt_token_ids"] == [5, 6, 7]
    assert choice["logprobs"]["token_logprobs"] == [-1.0] * 3
    assert choice["logprobs"]["tokens"] == [TOKENIZER.decode([i]) for i in WORDS[:3]]
    used = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert answer.json()["usage"] == used
    assert (answer.json()["object"], answer.json()["id"][:5]) == ("text_completion", "cmpl-")
    assert answer.json()["system_fingerprint"] is None
    assert engine.asked == [3]
    (unasked,) = served.complete(max_tokens=1).json()["choices"]
    assert unasked["logprobs"] is None
    assert not {"token_ids", "prompt_token_ids"} & unasked.keys()


def test_a_chat_answers_as_the_assistant(served, engine):
    engine.ends_after = 2
    answer = served.chat(logprobs=True, return_token_ids=True).json()
    (choice,) = answer["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": TOKENIZER.decode(WORDS[:2]),
        "refusal": None,
    }
    assert choice["finish_reason"] == "stop"
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [-1.0, -1.0]
    opening = {"add_generation_prompt": True, "return_dict": False}
    rendered = TOKENIZER.apply_chat_template(CHAT["messages"], **opening)
    assert answer["prompt_token_ids"] == list(rendered)
    assert "prompt_token_ids" not in choice
    assert (answer["object"], answer["id"][:9]) == ("chat.completion", "chatcmpl-")
    assert engine.asked == [CONTEXT - len(rendered)]


def test_a_stream_tells_the_same_as_a_whole_answer(served):
    asked = {"max_tokens": 9, "return_token_ids": True, "n": 2}
    whole = served.complete(**asked).json()
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = served.complete(**asked, **streaming)
    assert streamed.status_code == 200
    *pieces, done = events(streamed)
    *pieces, last = [json.loads(piece) for piece in pieces]
    assert done == "[DONE]"
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    for number, choice in enumerate(whole["choices"]):
        told = [c for piece in pieces for c in piece["choices"] if c["index"] == number]
        assert "".join(c["text"] for c in told) == choice["text"]
        assert [i for c in told for i in c["token_ids"]] == choice["token_ids"]
        assert [c["finish_reason"] for c in told][-1] == "length"
        assert [c["prompt_token_ids"] for c in told if "prompt_token_ids" in c] == [[5, 6, 7]]


def test_a_streamed_chat_opens_with_whose_words_follow(served, engine):
    engine.ends_after = 1
    *pieces, _ = events(served.chat(stream=True, n=2, return_token_ids=True))
    first, second, *rest = [json.loads(piece) for piece in pieces]
    assert [first["choices"][0]["index"], second["choices"][0]["index"]] == [0, 1]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "prompt_token_ids" in first
    assert "prompt_token_ids" not in second
    assert {piece["choices"][0]["delta"]["content"] for piece in rest} == {
        TOKENIZER.decode(WORDS[:1])
    }
    assert all(piece["object"] == "chat.completion.chunk" for piece in rest)
    assert all("usage" not in piece for piece in rest)


def test_answers_of_one_request_have_seeds_of_their_own(served, engine):
    served.complete(prompt=[[5], [6, 7]], n=2, max_tokens=1, seed=3)
    served.complete(prompt=[[5], [6, 7]], n=2, max_tokens=1, seed=3)
    served.complete(max_tokens=1, temperature=0.5, top_k=-1, top_p=0.5)
    seeds = [sampling.seed for _, sampling in engine.opened]
    first, again, (free,) = seeds[:4], seeds[4:8], seeds[8:]
    assert 1 << 60 < max(new_seed() for _ in range(64)) < 1 << 63
    assert [prompt for prompt, _ in engine.opened[:4]] == [(5,), (5,), (6, 7), (6, 7)]
    assert first[0] == 3
    assert len(set(first)) == 4
    assert all(0 <= seed < 1 << 63 for seed in first)  # as a request may give them
    assert (first, free) == (again, 11)
    sampling = engine.opened[-1][1]
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 0, 0.5)
    served.complete(max_tokens=1, seed=0)
    assert engine.opened[-1][1].seed == 0
    for seed in ((1 << 63) - 1, -1):
        served.complete(prompt=[[5]] * 4, n=1, max_tokens=1, seed=seed)
    assert [drawn.seed < 1 << 63 for _, drawn in engine.opened[-8:]] == [True] * 8


def test_usage_counts_each_prompt_once_and_every_answer(served):
    usage = served.complete(prompt=[[5], [6, 7]], n=2, max_tokens=3).json()["usage"]
    assert usage == {"prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15}


@pytest.mark.parametrize(
    ("changes", "status", "told"),
    [
        ({"model": "other"}, 404, "ask for tiny or models:/tiny/3"),
        ({"n": 5}, 400, "4 answers"),
        ({"prompt": [[5]] * 5}, 400, "4 prompts"),
        ({"prompt": [[5], [6]], "n": 3}, 400, "4 answers"),
        ({"prompt": [400]}, 400, "400 is no token id"),
        ({"prompt": [5, -1]}, 400, "-1 is no token id"),
        ({"max_tokens": CONTEXT - 2}, 400, f"3 tokens of the prompt and {CONTEXT - 2} of"),
        ({"prompt": [5] * CONTEXT}, 400, f"{CONTEXT} tokens of the prompt and 1 of"),
        ({"stop": 3}, 400, "stop"),
    ],
)
def test_what_does_not_fit_the_policy_is_refused(served, changes, status, told):
    answer = served.complete(**changes)
    assert answer.status_code == status
    assert told in answer.json()["error"]["message"]


def test_what_just_fits_the_policy_is_answered(served, engine):
    assert served.complete(max_tokens=CONTEXT - 3).json()["usage"]["total_tokens"] == CONTEXT
    assert served.complete(prompt=[399, 0], max_tokens=1).status_code == 200
    assert served.complete(n=4, max_tokens=1).status_code == 200
    four = served.complete(prompt=[[5]] * 4, max_tokens=1, model="models:/tiny/3")
    assert four.status_code == 200
    engine.asked.clear()
    served.complete()
    served.complete(prompt=[5] * (CONTEXT - 2))
    served.complete(prompt=[5] * (CONTEXT - 1), max_tokens=1)
    assert engine.asked == [16, 2, 1]


def test_a_chat_names_its_longest_answer_twice(served, engine):
    served.chat(max_tokens=5)
    served.chat(max_tokens=5, max_completion_tokens=4)
    served.chat(max_tokens=4, max_completion_tokens=6)
    assert engine.asked == [5, 4, 6]
    refused = served.chat(max_tokens=CONTEXT).json()["error"]
    assert (refused["param"], refused["code"]) == ("messages", "context_length_exceeded")


def test_more_answers_than_places_are_refused_at_once():
    admission = Admission(ServingConfig(rows=2, max_waiting=1, max_choices=3))
    with admission.hold(2):
        assert (admission.taken, admission.waiting) == (2, 0)
        with admission.hold(1):
            assert (admission.taken, admission.waiting) == (3, 1)
            with pytest.raises(Refusal, match="of at most 3") as refused, admission.hold(1):
                pass
    assert refused.value.status == 429
    assert (admission.taken, admission.waiting) == (0, 0)


def test_a_request_may_fill_every_place(served):
    served.endpoint = Endpoint(ServingConfig(rows=1, max_waiting=2, max_choices=3), lambda: 11)
    served.app = served.endpoint.app()
    served.endpoint.serve(served.policy, served.writer)
    assert [served.complete(n=3, max_tokens=1).status_code for _ in range(2)] == [200, 200]


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", {"content-type": "Application/JSON; charset=utf-8"}, 400),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(served, body, headers, status):
    answer = served.ask("POST", "/v1/completions", body, headers)
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_body_may_be_as_large_as_the_bound(served):
    server = Served(served.engine, ServingConfig(max_body_bytes=1024))
    server.endpoint.serve(server.policy, served.writer)
    body = json.dumps(COMPLETION | {"max_tokens": 1}).encode()
    whole = body + b" " * (1024 - len(body))
    assert server.ask("POST", "/v1/completions", whole).status_code == 200
    assert server.ask("POST", "/v1/completions", whole + b" ").status_code == 413


def test_probes_say_what_the_endpoint_waits_for(engine):
    server = Served(engine)
    server.endpoint.wait_for("tiny is being loaded")
    statuses = {p: server.ask("GET", p).status_code for p in ("/health", "/healthz", "/readyz")}
    assert statuses == {"/health": 503, "/healthz": 200, "/readyz": 503}
    told = {"status": "loading", "detail": "tiny is being loaded"}
    assert server.ask("GET", "/health").json() == told
    refused = server.complete()
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "espalier_serving_ready 0.0\n" in server.ask("GET", "/metrics").text


def test_an_endpoint_that_leaves_is_not_ready_and_answers(served):
    assert served.ask("GET", "/health").json() == {"status": "ok", "detail": "serving tiny"}
    assert "retry-after" not in served.ask("GET", "/health").headers
    assert served.ask("GET", "/readyz").status_code == 200
    assert "espalier_serving_ready 1.0\n" in served.ask("GET", "/metrics").text
    served.endpoint.leave()
    assert served.ask("GET", "/health").json()["status"] == "draining"
    assert served.ask("GET", "/readyz").status_code == 503
    assert served.ask("GET", "/healthz").status_code == 200
    assert "espalier_serving_ready 0.0\n" in served.ask("GET", "/metrics").text
    assert served.complete(max_tokens=1).status_code == 200


def test_an_engine_that_broke_is_told_and_never_ready_again(served, engine):
    engine.fault = RuntimeError("no memory")
    assert served.complete().json()["error"]["message"] == "the engine broke: no memory"
    whole, streamed = served.complete(), events(served.complete(stream=True))
    assert whole.status_code == 500
    assert json.loads(streamed[-1])["error"]["type"] == "server_error"
    for path in ("/health", "/healthz", "/readyz"):
        assert served.ask("GET", path).status_code == 503
    assert served.ask("GET", "/health").json()["status"] == "broken"


def test_an_answer_that_takes_too_long_is_given_up(engine):
    server = Served(engine, ServingConfig(request_timeout_s=0.05))
    server.writer.start()
    server.endpoint.serve(server.policy, server.writer)

    async def never(self, *, max_tokens):
        await asyncio.Event().wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Session, "sample", never)
        whole = server.complete()
        streamed = events(server.complete(stream=True))
    server.writer.stop()
    assert whole.status_code == 504
    assert "0 tokens were sampled" in whole.text
    assert json.loads(streamed[-1])["error"]["type"] == "timeout_error"


def test_the_policy_is_listed_under_each_of_its_names(served):
    listed = served.ask("GET", "/v1/models").json()
    assert [entry["id"] for entry in listed["data"]] == ["tiny", "models:/tiny/3"]
    one = served.ask("GET", "/v1/models/models:/tiny/3").json()
    assert (one["max_model_len"], one["created"], one["version"]) == (CONTEXT, 7, "3")
    assert served.ask("GET", "/v1/models/other").status_code == 404


def test_requests_and_tokens_are_counted_by_outcome(served):
    served.complete(max_tokens=3)
    served.chat(max_tokens=2, stream=True)
    served.complete(model="other")
    served.ask("GET", "/no/such/path")
    text = served.ask("GET", "/metrics").text
    for line in (
        'espalier_serving_requests_total{route="/v1/completions",status="200"} 1.0',
        'espalier_serving_requests_total{route="/v1/chat/completions",status="200"} 1.0',
        'espalier_serving_requests_total{route="/v1/completions",status="404"} 1.0',
        'espalier_serving_requests_total{route="other",status="404"} 1.0',
        "espalier_serving_sampled_tokens_total 5.0",
        "espalier_serving_first_token_seconds_count 2.0",
        "espalier_serving_request_seconds_count 2.0",
        "espalier_serving_taken 0.0",
    ):
        assert f"{line}\n" in text


def test_a_stop_text_ends_an_answer_before_it(served):
    stop = TOKENIZER.decode([WORDS[1]]).strip()
    (choice,) = served.complete(max_tokens=8, stop=[stop]).json()["choices"]
    assert (choice["finish_reason"], stop in choice["text"]) == ("stop", False)
    told = served.complete(max_tokens=8, stop=stop, include_stop_str_in_output=True).json()
    assert told["choices"][0]["text"].endswith(stop)
    by_id = served.complete(max_tokens=8, stop_token_ids=[WORDS[2]], return_token_ids=True).json()
    (choice,) = by_id["choices"]
    assert (choice["token_ids"], choice["finish_reason"]) == (list(WORDS[:3]), "stop")


def test_what_ends_a_message_can_be_written_past(served, engine):
    engine.ends_after = 2
    assert served.complete(max_tokens=2).json()["choices"][0]["finish_reason"] == "stop"
    past = served.complete(max_tokens=2, ignore_eos=True).json()["choices"][0]
    assert past["finish_reason"] == "length"

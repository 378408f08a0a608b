import asyncio
import email.utils
import logging
import time

import pytest

from espalier.completions import CallUsage, EndpointModel, ModelRefusal, in_order
from espalier.completions.servers import ChatServers
from espalier.records import EngineError
from tests.fakes.endpoint_double import Capital, Scripted, completion, config, request

PARIS = Capital(city="Paris", inhabitants=2)
SECRET = "sk-very-secret-0123456789"


class Sleeps:
    """Notes pauses and takes none."""

    def __init__(self):
        self.taken = []

    async def __call__(self, seconds):
        self.taken.append(seconds)


def asked(settings, *requests, sleep=None):
    """Answers to `requests`, one after the other, and the model that gave them."""

    async def session():
        async with EndpointModel(settings, sleep=sleep or Sleeps()) as model:
            return [await model.answer(each) for each in requests], model

    return asyncio.run(session())


def test_an_answer_comes_back_as_its_type(double):
    (answer,), model = asked(config(double, temperature=0.3, max_tokens=77), request())
    assert answer == PARIS
    path, body, _ = double.seen[0]
    assert path == "/v1/chat/completions"
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("small", 0.3, 77)
    assert body["response_format"]["json_schema"]["schema"] == Capital.model_json_schema()
    assert '"name":"France"' in body["messages"][1]["content"]
    assert model.ledger.of("capital").prompt_tokens == 10
    for kind, sent in (("json_object", {"type": "json_object"}), ("text", None)):
        asked(config(double, response_format=kind), request())
        assert double.seen[-1][1].get("response_format") == sent


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_a_busy_server_is_asked_again(double, status):
    double.script = [Scripted({"error": {"message": "busy"}}, status)] * 2
    (answer,), model = asked(config(double), request())
    assert answer == PARIS
    assert model.ledger.of("capital").retries == 2


def test_every_attempt_is_held_to_the_rate(double):
    double.script = [Scripted({}, 500)] * 2
    admitted = []

    async def admit():
        admitted.append(len(double.seen))

    async def session():
        async with ChatServers(config(double), "", sleep=Sleeps()) as servers:
            fields = {"model": "small", "messages": [{"role": "user", "content": "hi"}]}
            return await servers.send(fields, CallUsage(), admit)

    asyncio.run(session())
    assert admitted == [0, 1, 2]


def test_pauses_grow_and_stay_under_the_limit(double):
    double.script = [Scripted({}, 500)] * 7
    sleep = Sleeps()
    asked(config(double, attempts=8, max_wait_s=4), request(), sleep=sleep)
    assert len(sleep.taken) == 7
    assert 0 < max(sleep.taken) <= 4


def test_retry_after_may_be_a_number_or_a_date(double):
    in_a_while = email.utils.formatdate(time.time() + 30, usegmt=True)
    double.script = [
        Scripted({}, 429, headers={"Retry-After": "17"}),
        Scripted({}, 503, headers={"Retry-After": in_a_while}),
        Scripted({}, 429, headers={"Retry-After": "86400"}),
        Scripted({}, 429, headers={"Retry-After": "soon"}),
    ]
    sleep = Sleeps()
    asked(config(double, max_wait_s=40), request(), sleep=sleep)
    assert sleep.taken[0] == 17
    assert 25 < sleep.taken[1] <= 30
    assert sleep.taken[2] == 40
    assert sleep.taken[3] < 40


def test_a_server_that_stays_away_is_named(double):
    double.usual = Scripted({"error": {"message": "overloaded"}}, 500)
    with pytest.raises(EngineError, match=r"500.*overloaded"):
        asked(config(double, attempts=3), request())
    assert len(double.seen) == 3
    nobody = config(double, attempts=2).model_copy(update={"url": "http://127.0.0.1:9/v1"})
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:9"):
        asked(nobody, request())


@pytest.mark.parametrize(("status", "advice"), [(401, "key_file"), (404, "url"), (400, "400")])
def test_a_request_that_is_refused_for_good_is_sent_once(double, status, advice):
    double.usual = Scripted({"error": {"message": "no"}}, status)
    with pytest.raises(EngineError, match=advice):
        asked(config(double), request())
    assert len(double.seen) == 1


class ClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be put forward."""

    ahead_s = 0.0

    def time(self):
        return super().time() + self.ahead_s


@pytest.mark.parametrize("fault", [{"hangs": True}, {"drip_s": 0.005}, {"cut": True}])
def test_a_slow_or_cut_body_counts_as_no_answer(double, fault):
    """Only while a slow answer is awaited, the clock is put forward."""
    double.script = [Scripted(b" " * 10_000, **fault)]

    async def session():
        async with EndpointModel(config(double, timeout_s=60), sleep=Sleeps()) as model:
            asking = asyncio.create_task(model.answer(request()))
            usage = model.ledger.of("capital")
            while usage.requests < 2 and loop.ahead_s < 600:
                await asyncio.sleep(0.02)
                loop.ahead_s += 5 if double.seen and "cut" not in fault else 0
            return await asking, usage

    with asyncio.Runner(loop_factory=ClockLoop) as runner:
        loop = runner.get_loop()
        answer, usage = runner.run(session())
    assert (answer, usage.retries) == (PARIS, 1)
    assert len(double.seen) == 2


def test_an_endless_body_is_given_up(double):
    double.usual = Scripted(b" " * (9 << 20))
    with pytest.raises(EngineError, match="bytes"):
        asked(config(double), request())


def test_an_unreadable_answer_is_asked_for_with_another_seed(double):
    double.script = [Scripted(completion("Paris!")), Scripted(completion('{"city": 3}'))]
    (answer,), _ = asked(config(double, asks=3), request())
    assert answer == PARIS
    assert len({body["seed"] for _, body, _ in double.seen}) == 3


def test_an_answer_that_stays_unreadable_is_a_refusal(double):
    double.usual = Scripted(completion(None, refusal="I would rather not."))
    (answer,), model = asked(config(double, asks=2), request())
    assert answer == ModelRefusal("refused", "I would rather not.")
    assert len(double.seen) == 2
    assert model.ledger.as_dict()["capital"]["refusals"] == {"refused": 1}


def test_a_repeated_request_is_answered_from_the_cache(double, tmp_path):
    settings = config(double, cache=tmp_path)
    first, _ = asked(settings, request(), request("Spain"), request(sample=1))
    again, model = asked(settings, request(), request("Spain"), request(sample=1))
    assert first == again
    assert len(double.seen) == 3
    assert model.ledger.of("capital").from_cache == 3
    assert model.ledger.cost == 0
    asked(config(double, cache=tmp_path, temperature=0.0), request())
    assert len(double.seen) == 4, "other settings are other answers"


def test_a_refusal_is_replayed_as_a_refusal(double, tmp_path):
    double.usual = Scripted(b"\xff\xfe no text")
    first, _ = asked(config(double, cache=tmp_path, asks=2), request())
    again, _ = asked(config(double, cache=tmp_path, replay_only=True), request())
    assert [answer.reason for answer in (*first, *again)] == ["broken_json", "broken_json"]
    assert len(double.seen) == 2


def test_a_damaged_file_of_the_cache_is_asked_for_again(double, tmp_path):
    asked(config(double, cache=tmp_path), request())
    (path,) = tmp_path.rglob("*.json")
    path.write_bytes(path.read_bytes()[:-9])
    (answer,), _ = asked(config(double, cache=tmp_path), request())
    assert answer == PARIS
    assert len(double.seen) == 2


def test_a_replay_sends_nothing_and_names_what_it_lacks(double, tmp_path):
    settings = config(double, cache=tmp_path, replay_only=True)
    with pytest.raises(EngineError, match=r"capital.*replay_only"):
        asked(settings, request())
    assert double.seen == []


def test_the_cost_limit_is_never_exceeded(double):
    prices = {"prompt_price": 1e6, "completion_price": 1e6, "max_tokens": 20}
    double.usual = Scripted(completion('{"city": "Paris", "inhabitants": 2}', usage=(100, 20)))
    settings = config(double, **prices, max_cost=700)

    async def session():
        async with EndpointModel(settings) as model:
            try:
                async for _ in in_order(model.answer, map(request, "abcdefgh"), in_flight=4):
                    pass
            except EngineError as error:
                return str(error), model.ledger
        raise AssertionError("the limit was not kept")

    message, ledger = asyncio.run(session())
    assert "max_cost=700" in message
    assert 0 < ledger.cost <= 700


def test_a_server_without_counts_is_charged_the_longest_answer(double):
    double.usual = Scripted(completion('{"city": "Paris", "inhabitants": 2}', usage=None))
    _, model = asked(config(double, max_tokens=50), request())
    usage = model.ledger.of("capital")
    assert usage.completion_tokens == 50
    assert usage.prompt_tokens > 20


def test_no_more_requests_are_under_way_than_allowed(double):
    double.usual.delay_s = 0.05

    async def session():
        async with EndpointModel(config(double, concurrency=3)) as model:
            work = in_order(model.answer, map(request, "abcdefghijkl"), in_flight=12)
            return [answer async for answer in work]

    assert asyncio.run(session()) == [PARIS] * 12
    assert double.most_under_way == 3


def test_the_key_is_sent_and_never_told(double, tmp_path, caplog):
    key_file = tmp_path / "key"
    key_file.write_text(f"{SECRET}\n")
    settings = config(double, key_file=key_file, cache=tmp_path / "cache", attempts=2)
    double.script = [Scripted({"error": {"message": f"key {SECRET} is over quota"}}, 500)] * 2
    with caplog.at_level(logging.DEBUG), pytest.raises(EngineError) as caught:
        asked(settings, request())
    with caplog.at_level(logging.DEBUG):
        asked(settings, request())
    assert double.seen[0][2] == f"Bearer {SECRET}"
    told = [str(caught.value), repr(caught.value), caplog.text, repr(settings)]
    told += [path.read_text() for path in (tmp_path / "cache").rglob("*.json")]
    assert not any(SECRET in text for text in told)
    assert "***" in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("content", [None, b"", b"two words", b"line\x00", b"\xff"])
def test_a_file_that_holds_no_key_is_refused(double, tmp_path, content):
    key_file = tmp_path / "none"
    if content is not None:
        key_file.write_bytes(content)
    with pytest.raises(EngineError, match="none"):
        EndpointModel(config(double, key_file=key_file))

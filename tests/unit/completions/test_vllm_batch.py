import asyncio
import sys
import threading

import pytest
from pydantic import ValidationError

from espalier.chain import STAGES
from espalier.completions import EndpointModel, ModelRefusal, VllmModel, in_order, opened_model
from espalier.config import EndpointConfig, Profile, VllmBatchConfig
from espalier.config.teacher import TeacherConfig
from espalier.records import EngineError
from tests.fakes import vllm_package
from tests.fakes.endpoint_double import Capital, request

ANSWER = Capital(city="Paris", inhabitants=2)


@pytest.fixture
def package(monkeypatch):
    return vllm_package.installed(monkeypatch)


def settings_of(**fields):
    return VllmBatchConfig(**{"model": "DIR"} | fields)


def asked(settings, *requests, in_flight=64):
    """Answers to `requests`, and the model that gave them."""

    async def session():
        async with VllmModel(settings) as model:
            answers = in_order(model.answer, requests, in_flight=in_flight)
            return [answer async for answer in answers], model

    return asyncio.run(session())


def test_requests_that_wait_at_the_same_time_are_one_batch(package):
    def named(messages, _):
        number = ord(messages[1]["content"].split('"')[3])
        return f'{{"city": "{chr(number)}", "inhabitants": {number}}}'

    package.respond = named
    answers, model = asked(settings_of(batch_size=7), *map(request, "abcdefghij"))
    assert [answer.city for answer in answers] == list("abcdefghij")
    assert [len(batch) for batch in package.batches] == [7, 3]
    usage = model.ledger.of("capital")
    assert (usage.answers, usage.requests) == (10, 10)
    assert (usage.prompt_tokens, usage.completion_tokens) == (100, 50)
    assert model.ledger.cost == 0


def test_each_chat_has_its_own_schema_and_seed(package):
    settings = settings_of(temperature=0.3, max_tokens=77, asks=3)
    asked(settings, request(), request(sample=1))
    (first, second) = [params for _, params in package.batches[0]]
    assert (first.temperature, first.max_tokens) == (0.3, 77)
    assert first.structured_outputs.json == Capital.model_json_schema()
    assert (first.seed, second.seed) == (0, 3)
    for kind, held_to in (("json_object", True), ("text", None)):
        asked(settings_of(response_format=kind), request())
        guided = package.batches[-1][0][1].structured_outputs
        assert (guided and guided.json_object) == held_to


def test_the_model_is_loaded_once_and_released(package):
    settings = settings_of(batch_size=2, engine={"max_model_len": 512, "enforce_eager": True})
    asked(settings, *map(request, "abcdef"), in_flight=2)
    assert package.loaded == [("DIR", {"max_model_len": 512, "enforce_eager": True})]
    assert package.closed == 1
    assert len(package.threads) == 1
    assert threading.get_ident() not in package.threads


@pytest.mark.parametrize(
    ("answered", "reason"),
    [
        (('{"city": "Par', "length"), "truncated"),
        (("", "abort"), "wrong_shape"),
        (("\ud800", "stop"), "broken_json"),
    ],
)
def test_an_answer_that_stays_unreadable_is_a_refusal(package, answered, reason):
    package.respond = lambda messages, params: answered
    (answer,), model = asked(settings_of(asks=2), request())
    assert isinstance(answer, ModelRefusal)
    assert answer.reason == reason
    assert [params.seed for batch in package.batches for _, params in batch] == [0, 1]
    assert model.ledger.as_dict()["capital"]["refusals"] == {reason: 1}


def test_what_the_cache_holds_needs_no_vllm(package, monkeypatch, tmp_path):
    first, _ = asked(settings_of(cache=tmp_path), request(), request("Spain"))
    for name in ("vllm", "vllm.exceptions", "vllm.sampling_params"):
        monkeypatch.setitem(sys.modules, name, None)
    again, model = asked(settings_of(cache=tmp_path), request(), request("Spain"))
    assert first == again
    assert model.ledger.of("capital").from_cache == 2
    with pytest.raises(EngineError, match=r"espalier-agents\[vllm\]"):
        asked(settings_of(cache=tmp_path), request("Italy"))
    with pytest.raises(EngineError, match="replay_only"):
        asked(settings_of(cache=tmp_path, replay_only=True), request("Italy"))


def test_the_cache_key_depends_on_model_and_sampling_alone(package, tmp_path):
    asked(settings_of(cache=tmp_path), request())
    asked(settings_of(cache=tmp_path, batch_size=3, engine={"max_model_len": 9}), request())
    assert len(package.batches) == 1
    asked(settings_of(cache=tmp_path, temperature=0.0), request())
    asked(settings_of(cache=tmp_path, model="OTHER"), request())
    assert len(package.batches) == 3
    server = EndpointConfig(url="http://h/v1", model="DIR", cache=tmp_path, replay_only=True)

    async def session():
        async with EndpointModel(server) as model:
            return await model.answer(request())

    with pytest.raises(EngineError, match="replay_only"):
        asyncio.run(session())


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (vllm_package.VLLMError("too long"), EngineError),
        (ValueError("no"), EngineError),
        (RuntimeError("dead"), EngineError),
        (ZeroDivisionError("a fault of ours"), ZeroDivisionError),
    ],
)
def test_a_failed_batch_is_an_error_for_all_its_requests(package, failure, error):
    package.failure = failure

    async def session():
        async with VllmModel(settings_of()) as model:
            work = [model.answer(request(name)) for name in "abc"]
            return await asyncio.gather(*work, return_exceptions=True)

    told = asyncio.run(asyncio.wait_for(session(), 10))
    assert all(type(one) is error and str(failure) in str(one) for one in told)


def test_a_setting_that_vllm_does_not_know_is_named(package):
    package.failure = TypeError("unexpected keyword argument 'max_lenght'")
    with pytest.raises(EngineError, match=r"DIR.*max_lenght"):
        asked(settings_of(engine={"max_lenght": 3}), request())


def test_those_whose_neighbour_gave_up_are_answered_all_the_same(package):
    package.delay_s = 0.1

    async def session():
        async with VllmModel(settings_of()) as model:
            tasks = [asyncio.create_task(model.answer(request(name))) for name in "abc"]
            await asyncio.sleep(0.05)
            tasks[0].cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)

    given_up, *others = asyncio.run(asyncio.wait_for(session(), 10))
    assert isinstance(given_up, asyncio.CancelledError)
    assert others == [ANSWER, ANSWER]


def test_a_profile_chooses_the_door(package):
    async def names(teacher):
        async with opened_model(teacher.model) as opened:
            return type(opened.model).__name__, opened.in_flight

    here = TeacherConfig(kind="vllm", vllm=settings_of(batch_size=5))
    there = TeacherConfig(kind="endpoint", endpoint={"url": "http://h/v1", "model": "m"})
    assert asyncio.run(names(here)) == ("VllmModel", 5)
    assert asyncio.run(names(there)) == ("EndpointModel", 8)
    assert TeacherConfig().model is None


@pytest.mark.parametrize(
    ("teacher", "complaint"),
    [
        ({"kind": "vllm"}, r"teacher\.vllm\.model"),
        ({"vllm": {"model": "DIR"}}, r"teacher\.vllm\.model"),
        ({"kind": "vllm", "vllm": {"model": "DIR", "engine": {"model": "X"}}}, r"vllm\.model"),
        ({"kind": "vllm", "vllm": {"model": "DIR", "replay_only": True}}, "replay"),
    ],
)
def test_contradictory_settings_of_the_teacher_are_refused(teacher, complaint):
    with pytest.raises(ValidationError, match=complaint):
        Profile.model_validate({"teacher": teacher})


def test_without_vllm_a_profile_has_the_digests_that_it_had():
    assert "vllm" not in Profile().model_dump(mode="json")["teacher"]
    chosen = Profile.model_validate({"teacher": {"kind": "vllm", "vllm": {"model": "DIR"}}})
    assert Profile.model_validate_json(chosen.model_dump_json()) == chosen
    assert STAGES["synthesize"].digest(chosen) != STAGES["synthesize"].digest(Profile())
    assert STAGES["ingest"].digest(chosen) == STAGES["ingest"].digest(Profile())

"""Several servers of one model: who is asked, and what becomes of requests of a lost one."""

import asyncio
import json

import pytest

from espalier.completions import (
    EndpointFault,
    EndpointModel,
    all_answers,
    in_order,
    routing,
    servers,
)
from espalier.config import EndpointConfig
from espalier.records import EngineError
from tests.fakes.endpoint_double import Capital, Scripted, completion, request

NAMES = [f"town {number}" for number in range(48)]
PRICES = {"prompt_price": 1.0, "completion_price": 2.0}


def settings(two, **fields):
    defaults = {"model": "small", "attempts": 2, "max_wait_s": 0.01, "timeout_s": 30}
    return EndpointConfig(**({"url": [double.url for double in two]} | defaults | fields))


def by_question(body):
    """An answer that depends on the request alone, as that of any server of one model does."""
    name = json.loads(body["messages"][1]["content"])["name"]
    return completion(json.dumps({"city": name.upper(), "inhabitants": len(name)}))


def asked(two, requests, *, during=None, **fields):
    """Answers to `requests` and the model; `during(model)` runs beside them, if given."""
    for double in two:
        double.respond = double.respond or by_question

    async def session():
        async with EndpointModel(settings(two, **fields)) as model:
            beside = asyncio.create_task(during(model)) if during else None
            answers = in_order(model.answer, requests, in_flight=8)
            found = [answer async for answer in answers]
            if beside:
                await beside
            return found, model

    return asyncio.run(session())


def answered(double):
    """The questions that a server was asked."""
    return [body["messages"][1]["content"] for _, body, _ in double.seen]


def test_requests_spread_and_equal_beginnings_share_a_server(two):
    names = [f"town {number}" for number in range(60)]
    requests = [request(name, sample=sample) for name in names for sample in range(2)]
    found, _ = asked(two, requests)
    assert [one.city for one in found] == [name.upper() for name in names for _ in range(2)]
    shares = [len(double.seen) for double in two]
    assert sum(shares) == len(requests)
    assert max(shares) <= 0.75 * sum(shares)
    apart = set(answered(two[0])) & set(answered(two[1]))
    assert len(apart) <= len(names) // 4, "few questions are asked at both"


@pytest.mark.parametrize("how", ["dead", "broken", pytest.param("hangs", marks=pytest.mark.slow)])
def test_requests_of_a_lost_server_are_answered_elsewhere(two, how, monkeypatch):
    if how == "hangs":
        monkeypatch.setattr(servers, "_HEALTH_WITHIN_S", 3.0)
    expected, alone = asked(two[:1], map(request, NAMES), **PRICES)
    two[0].seen.clear()
    lost = two[1]

    def failing(body):
        if len(lost.seen) < 4:
            return by_question(body)
        lost.is_dead = how == "dead"
        slow_s = 8.0 if how == "hangs" else 0.0
        lost.health = Scripted({}, 503, delay_s=slow_s)
        return Scripted({}, 500, delay_s=slow_s)

    lost.respond = failing
    found, model = asked(
        two, map(request, NAMES), timeout_s=3.0 if how == "hangs" else 60, attempts=1, **PRICES
    )
    assert found == expected
    assert model.ledger.cost == alone.ledger.cost, "a question is paid once"
    usage, of_one = (each.ledger.of("capital") for each in (model, alone))
    assert usage.answers == len(NAMES)
    assert usage.prompt_tokens == of_one.prompt_tokens
    assert usage.requests == len(two[0].seen) + len(lost.seen)
    assert usage.retries == usage.requests - len(NAMES)
    assert model._servers.lost == 1
    assert len(set(answered(two[0]))) == len(two[0].seen), "none was sent twice to the other"


def test_an_overloaded_server_stays_in_use(two):
    busy = two[0]
    busy.respond = lambda body: (
        Scripted({}, 503) if len(busy.seen) % 2 else Scripted(by_question(body))
    )
    found, model = asked(two, map(request, NAMES))
    assert len(found) == len(NAMES)
    assert model._servers.lost == 0
    assert model.ledger.of("capital").answers == len(NAMES)


def test_a_server_that_returns_is_asked_again(two, monkeypatch):
    monkeypatch.setattr(servers, "_LOOKS_EVERY_S", 0.02)
    gone = two[1]
    gone.is_dead = True

    async def back(model):
        while len(model._servers.usable) > 1:
            await asyncio.sleep(0.005)
        gone.is_dead = False
        gone.seen.clear()
        while len(model._servers.usable) < 2:
            await asyncio.sleep(0.005)
        for name in NAMES:
            assert isinstance(await model.answer(request(name, sample=1)), Capital)

    asked(two, map(request, NAMES), during=back)
    assert gone.seen


def test_where_no_server_is_left_all_are_named(two):
    for double in two:
        double.is_dead = True
    with pytest.raises(EndpointFault, match="no server is left") as raised:
        asked(two, [request()])
    assert all(double.url in str(raised.value) for double in two)
    assert "run the same command again" in str(raised.value)


def test_a_failing_server_is_named_and_not_another(two):
    for double in two:
        double.respond = lambda body, double=double: Scripted(
            {"error": {"message": f"of {double.url}"}}, 503
        )
    with pytest.raises(EndpointFault) as raised:
        asked(two, [request()])
    said = str(raised.value)
    assert [said.startswith(one.url) for one in two] == [f"of {one.url}" in said for one in two]
    assert [len(one.seen) for one in two] == [1, 1], "each attempt is at another"


def test_a_refused_request_is_refused_once(two):
    for double in two:
        double.respond = lambda body: Scripted({"error": {"message": "too long"}}, 400)
    with pytest.raises(EngineError, match="too long"):
        asked(two, [request()])
    assert sum(len(double.seen) for double in two) == 1


def test_a_teacher_behind_two_servers_answers_all(two):
    two[1].respond = lambda body: Scripted({}, 500)
    two[1].health = Scripted({}, 503)
    two[0].respond = by_question
    found = all_answers(settings(two), map(request, NAMES))
    assert [one.city for one in found] == [name.upper() for name in NAMES]


def test_a_host_name_of_two_addresses_is_two_servers(two, monkeypatch):
    async def behind(url):
        return [double.url for double in two] if url == "http://pool:8000/v1" else [url]

    monkeypatch.setattr(routing, "addresses_of", behind)
    asked(two, map(request, NAMES), url="http://pool:8000/v1")
    assert all(double.seen for double in two)
    assert two[0].hosts == two[1].hosts == {"pool:8000"}


def test_the_first_server_stands_for_all_in_the_cache(two, tmp_path):
    first, _ = asked(two[:1], map(request, NAMES[:3]), cache=tmp_path)
    again, model = asked(two, map(request, NAMES[:3]), cache=tmp_path, replay_only=True)
    assert again == first
    assert model.ledger.of("capital").from_cache == 3


def test_one_address_stays_a_text():
    one = EndpointConfig(url="http://a/v1/")
    assert EndpointConfig(url=["http://a/v1", "http://a/v1/"]) == one
    assert (one.url, one.urls) == ("http://a/v1", ("http://a/v1",))
    assert EndpointConfig().urls == EndpointConfig(url=[]).urls == ()
    several = EndpointConfig(url=["http://a/v1", "http://b/v1"])
    assert EndpointConfig.model_validate_json(several.model_dump_json()) == several
    with pytest.raises(ValueError, match="are logged"):
        EndpointConfig(url=["http://a/v1", "http://me:secret@b/v1"])


def test_the_turns_of_a_conversation_stay_at_one_server(two):
    """A simulated user's text grows from turn to turn; a policy's messages do."""
    grows = [{"role": "system", "content": "s"}, {"role": "user", "content": "x" * 300}]
    longer = [grows[0], {"role": "user", "content": "x" * 300 + "y"}]
    further = [*grows, {"role": "assistant", "content": "z"}]
    other = [grows[0], {"role": "user", "content": "y" * 300}]
    same = {servers._beginning(messages) for messages in (grows, longer, further)}
    assert len(same) == 1
    assert servers._beginning(other) not in same
    assert servers._beginning(grows[1:]) == servers._beginning(further[1:])


def test_a_single_server_is_asked_again_and_not_left_out(double):
    double.respond = lambda body: (
        Scripted({}, 500) if len(double.seen) == 1 else Scripted(by_question(body))
    )
    double.health = Scripted({}, 503)
    _, model = asked([double], [request()])
    assert len(double.seen) == 2
    assert model._servers.lost == 0

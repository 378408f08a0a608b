"""Episodes of any family whose tools are functions, whether they wait or not."""

import asyncio
import inspect
import json
import math
from dataclasses import replace

import pytest

from espalier.config import Profile
from espalier.environments import AsyncToolEnvironment, Tool, ToolEnvironment
from espalier.records import DataError, FinalAnswer, Malformed, ToolCall, ToolCalls
from espalier.records.trajectory import FinishReason
from tests.unit.environments.prices import Prices, price

FAMILY = "tests.unit.environments.prices:Prices"


async def price_later(item: str) -> int:
    """Price of an item."""
    await asyncio.sleep(0)
    return price(item)


price_later.__name__ = "price"


def family(**limits):
    profile = {"environment": {"name": FAMILY}, "episode": limits}
    return Prices(Profile.model_validate(profile))


@pytest.fixture(params=["at once", "waiting"])
def episode(request):
    """An episode of the first training task."""

    def begun(**limits):
        prices = family(**limits)
        tools = prices.built_tools
        if request.param == "waiting":
            tools = (Tool(price_later), *tools[1:])
        environment = prices.environments_of(prices.rules(tools))(prices.tasks("train", 1)[0])
        expected = AsyncToolEnvironment if request.param == "waiting" else ToolEnvironment
        assert isinstance(environment, expected)
        (task,) = prices.tasks("train", 1)
        opening = environment.reset(task)
        assert opening.messages == task.prompt
        assert [tool.name for tool in opening.tools] == ["price", "convert"]
        return environment

    return begun


def done(result):
    async def waited():
        return await result

    return asyncio.run(waited()) if inspect.isawaitable(result) else result


def calls(*named):
    return ToolCalls(
        tuple(
            ToolCall(name=name, arguments=arguments, call_id=f"c{place}")
            for place, (name, arguments) in enumerate(named)
        )
    )


PRICE = ("price", {"item": "thing1"})


def test_a_call_is_answered_and_an_answer_scored(episode):
    environment = episode()
    step = done(environment.step(calls(PRICE)))
    assert [(m.role, m.content, m.call_id) for m in step.messages] == [("tool", "1", "c0")]
    assert not step.done
    assert done(environment.step(FinalAnswer("2"))).finish_reason is FinishReason.ANSWERED
    assert environment.answer == "2"
    assert done(environment.score()) == {"outcome": 1.0, "format": 0.1}


def test_a_tool_that_is_not_there_costs_one_observation(episode):
    environment = episode()
    step = done(environment.step(calls(("buy", {}))))
    assert step.messages[0].content == "error: no tool is named buy; there are price, convert"
    (result,) = environment.tool_results
    assert (result.succeeded, result.exists, step.done) == (False, False, False)


def test_several_calls_of_one_message_are_answered_in_order(episode):
    environment = episode()
    step = done(environment.step(calls(PRICE, ("convert", {"amount": 3}), ("price", {}))))
    assert [(message.content, message.call_id) for message in step.messages] == [
        ("1", "c0"), ("6 crowns", "c1"), ("error: item: Field required", "c2"),
    ]  # fmt: skip
    names = [result.call.name for result in environment.tool_results]
    assert names == ["price", "convert", "price"]


def test_calls_beyond_the_bound_of_a_message_are_refused(episode):
    environment = episode(max_turn_calls=2)
    step = done(environment.step(calls(PRICE, PRICE, PRICE)))
    assert [message.call_id for message in step.messages] == ["c0", "c1", "c2"]
    assert [message.content for message in step.messages[:2]] == ["1", "1"]
    assert "at most 2 calls" in step.messages[2].content
    assert [result.succeeded for result in environment.tool_results] == [True, True, False]


def test_the_limit_counts_messages_and_not_calls(episode):
    environment = episode(max_turns=2)
    assert not done(environment.step(calls(PRICE, PRICE, PRICE))).done
    step = done(environment.step(calls(PRICE)))
    assert step.finish_reason is FinishReason.MAX_TURNS
    assert step.messages == ()
    assert len(environment.tool_results) == 4
    assert done(environment.score()) == {"outcome": 0.0, "format": 0.0}


def test_what_cannot_be_parsed_ends_the_episode(episode):
    environment = episode()
    step = done(environment.step(Malformed("nonsense", "<tool_call>")))
    assert step.finish_reason is FinishReason.PARSE_ERROR
    assert environment.answer is None
    assert done(environment.score()) == {"outcome": 0.0, "format": 0.0}


def begun(**fields):
    prices = family()
    rules = replace(prices.rules(prices.built_tools), **fields)
    environment = rules.environment()
    environment.reset(prices.tasks("train", 1)[0])
    return environment


def test_nothing_is_called_after_a_call_that_ends():
    environment = begun(ending_tools=frozenset({"convert"}))
    step = environment.step(calls(PRICE, ("convert", {"amount": 1}), PRICE))
    assert step.finish_reason is FinishReason.ANSWERED
    assert environment.answer == "2 crowns"
    assert [result.content for result in environment.tool_results] == ["1", "2 crowns"]


def test_a_refused_call_does_not_end_the_episode():
    environment = begun(ending_tools=frozenset({"price"}))
    assert not environment.step(calls(("price", {"item": "air"}))).done
    assert environment.step(calls(PRICE)).done


def test_calls_that_are_the_answer_are_recorded_and_not_made():
    judged = []

    def verify(_task, answer, turns):
        judged.append((answer, turns))
        return 1.0

    environment = begun(calls_are_answer=True, verify=verify)
    assert environment.step(calls(("no_such_tool", {"n": 1}), PRICE)).done
    assert environment.score() == {"outcome": 1.0, "format": 0.1}
    ((answer, (turn,)),) = judged
    assert json.loads(answer) == [
        {"name": "no_such_tool", "arguments": {"n": 1}},
        {"name": "price", "arguments": {"item": "thing1"}},
    ]
    assert [result.content for result in turn] == ["", ""]


@pytest.mark.parametrize("waits", [False, True])
def test_a_user_replies_until_they_have_gone(waits):
    said = iter(["which thing?", None])

    async def reply_later(_text):
        return next(said)

    environment = begun(reply=reply_later if waits else lambda _text: next(said))
    step = done(environment.step(FinalAnswer("hello")))
    assert [(m.role, m.content) for m in step.messages] == [("user", "which thing?")]
    assert environment.answer is None
    assert done(environment.step(FinalAnswer("goodbye"))).finish_reason is FinishReason.ANSWERED
    assert environment.answer == "goodbye"


def test_words_to_a_user_count_against_the_limit_of_messages():
    environment = begun(reply=lambda _text: "go on", max_turns=2)
    assert not environment.step(FinalAnswer("one")).done
    assert environment.step(FinalAnswer("two")).finish_reason is FinishReason.MAX_TURNS


def test_further_terms_stand_beside_the_outcome():
    environment = begun(further_terms=lambda _task, _answer, turns: {"calls": -0.1 * len(turns)})
    environment.step(calls(PRICE))
    environment.step(FinalAnswer("2"))
    assert environment.score() == {"outcome": 1.0, "format": 0.1, "calls": -0.1}


def test_the_end_is_told_once_however_often_it_comes():
    told = []
    environment = begun(on_end=lambda: told.append("end"))
    environment.step(FinalAnswer("2"))
    environment.cut_off(FinishReason.MAX_TOKENS)
    assert told == ["end"]


@pytest.mark.parametrize("said", [1.5, -1.0, math.nan, math.inf])
def test_an_outcome_outside_its_range_is_an_error(said):
    environment = begun(verify=lambda *_: said)
    environment.step(FinalAnswer("2"))
    with pytest.raises(DataError, match=rf"prices gave {said}.* 0 to 1"):
        environment.score()


def test_an_outcome_is_scaled_as_the_rules_say():
    span = {"outcome_span": (-3.0, 3.0), "outcome_scale": 1 / 6}
    environment = begun(verify=lambda *_: -1.5, **span)
    environment.step(FinalAnswer("2"))
    assert environment.score()["outcome"] == -0.25

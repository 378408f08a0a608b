"""Tasks without a rule are decided by judges; a rule beats them."""

import asyncio

import pytest

from espalier.config import JudgesConfig, Profile
from espalier.environments import AsyncToolEnvironment, EnvironmentLostError, ToolEnvironment
from espalier.records import EngineError, FinalAnswer
from tests.fakes.endpoint_double import Scripted, completion, of_small_context, running_double
from tests.unit.environments.prices import Prices

FAMILY = "tests.unit.environments.prices:Prices"
YES = completion('{"reasoning": "r", "holds_success": true}')


@pytest.fixture
def double():
    with running_double() as server:
        yield server


def played(double, *, rubric):
    models = [{"url": double.url, "model": name, "asks": 1, "attempts": 1} for name in "abc"]
    judges = {
        "models": models,
        "rubric": [{"name": "success", "question": "Right?"}],
        "decides": "tasks_without_rule",
    }
    profile = Profile.model_validate(
        {"environment": {"name": FAMILY}, "reward": {"judges": JudgesConfig(**judges).model_dump()}}
    )
    family = Prices(profile)
    [task] = family.tasks("train", 1)
    if rubric:
        verifier = task.verifier.model_copy(update={"kind": "rubric", "gold": ("two crowns",)})
        task = task.model_copy(update={"verifier": verifier})
    environment = family.environments_of(family.rules(family.built_tools))(task)
    environment.reset(task)
    return environment


def scored(environment, answer="about two"):
    async def episode():
        await environment.step(FinalAnswer(answer))
        return await environment.score()

    return asyncio.run(episode())


def test_judges_decide_where_there_is_no_rule(double):
    double.respond = lambda _body: YES
    environment = played(double, rubric=True)
    assert isinstance(environment, AsyncToolEnvironment)
    assert scored(environment)["outcome"] == 1.0
    told = double.seen[0][1]["messages"][1]["content"]
    assert '"reference":"two crowns"' in told
    assert len(double.seen) == 3


def test_a_rule_beats_the_judges(double):
    double.respond = lambda _body: YES
    environment = played(double, rubric=False)
    assert isinstance(environment, ToolEnvironment)
    environment.step(FinalAnswer("about two"))
    assert environment.score()["outcome"] == 0.0
    assert double.seen == [], "nobody is asked"


def test_an_episode_without_a_judgement_is_not_scored(double):
    double.respond = lambda _body: completion("I cannot say")
    with pytest.raises(EnvironmentLostError, match="3 of 3"):
        scored(played(double, rubric=True))


LONG = "about two " * 2000


@pytest.mark.parametrize("status", [400, 413, 422])
def test_an_answer_too_long_for_the_judges_is_wrong(double, status):
    double.respond = of_small_context(YES, status=status)
    environment = played(double, rubric=True)
    assert scored(environment, LONG)["outcome"] == 0.0
    assert len(double.seen) == 2 * 3, "each is asked once more, without the answer"
    assert scored(played(double, rubric=True))["outcome"] == 1.0


def test_an_answer_that_a_filter_refuses_is_wrong(double):
    blocked = Scripted({"error": {"message": "filtered", "code": "content_filter"}}, 400)
    double.respond = lambda body: blocked if "curse" in str(body["messages"]) else YES
    assert scored(played(double, rubric=True), "curse")["outcome"] == 0.0


def test_a_judge_that_refuses_every_question_ends_the_run(double):
    double.respond = of_small_context(YES, most=10)
    with pytest.raises(EngineError, match="maximum context"):
        scored(played(double, rubric=True), LONG)


def test_judges_with_room_outvote_the_one_without(double):
    small = of_small_context(YES)
    double.respond = lambda body: small(body) if body["model"] == "a" else YES
    assert scored(played(double, rubric=True), LONG)["outcome"] == 1.0

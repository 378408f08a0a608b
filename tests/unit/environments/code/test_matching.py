"""The terms that compare a program with the gold one, as an episode is paid them."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from espalier.config import Profile
from espalier.environments import family_of
from espalier.records import FinalAnswer
from espalier.rewards.unit_tests import TestReport
from espalier_environments.code.family import ProgramJudge
from espalier_environments.code.judging import Judgement
from espalier_environments.code.matching import gold_matches

WEIGHTS = {"syntax_weight": 0.1, "data_flow_weight": 0.2}


def family(**environment):
    section = {"name": "code", "tools": [], **environment}
    return family_of(Profile.model_validate({"environment": section}))


@pytest.fixture(scope="module")
def task():
    return family().tasks("train", 1)[0]


class _Judged(ProgramJudge):
    """A court whose verdict is given beforehand."""

    def __init__(self, *, compiled, passed):
        verdicts = ("passed",) if passed else ("failed",)
        self._found = Judgement(TestReport(compiled=compiled, verdicts=verdicts), ("",))

    async def judgement(self, task, program):
        return self._found


def paid(task, program, *, compiled=True, passed=False, **environment):
    """The terms of an episode that answers with a program."""
    code = family(**environment)
    rules = code._rules_in(_Judged(compiled=compiled, passed=passed), (), task)
    environments = code.environments_by((), lambda _task: rules)

    async def played():
        environment = environments(task)
        environment.reset(task)
        await environment.step(FinalAnswer(program))
        return await environment.score()

    return asyncio.run(played())


def test_the_gold_program_is_paid_whole_and_another_in_part(task):
    gold = task.verifier.gold[0]
    terms = paid(task, gold, passed=True, **WEIGHTS)
    assert terms["syntax_match"] == pytest.approx(0.1)
    assert terms["data_flow_match"] == pytest.approx(0.2)
    assert "syntax_match" not in paid(task, gold, passed=True)
    terms = paid(task, "def f(x):\n    return x\n", **WEIGHTS)
    assert 0 < terms["syntax_match"] < 0.1
    assert 0 <= terms["data_flow_match"] < 0.2


@pytest.mark.parametrize(
    ("program", "compiled"),
    [("def f(x)\n", False), ("x = " + "-" * 2000 + "1", True), ("x" * 200_000, True)],
)
def test_what_is_not_parsed_is_paid_nothing(task, program, compiled):
    terms = paid(task, program, compiled=compiled, **WEIGHTS)
    assert terms["syntax_match"] == terms["data_flow_match"] == 0


@pytest.mark.parametrize(
    ("environment", "reward"),
    [
        ({"syntax_weight": 0.25, "data_flow_weight": 0.25, "compile_weight": 0.1}, {}),
        (WEIGHTS, {"outcome": 0.5}),
        ({"syntax_weight": 0.3}, {}),
        (WEIGHTS, {"terms": [{"name": "tool_efficiency", "weight": 0.9}]}),
    ],
)
def test_terms_that_outweigh_the_tests_are_refused(environment, reward):
    with pytest.raises(ValidationError):
        Profile.model_validate({"environment": {"name": "code", **environment}, "reward": reward})
    Profile.model_validate({"environment": {"name": "code", **WEIGHTS}})


@settings(max_examples=60)
@given(program=st.text(max_size=60) | st.lists(
    st.sampled_from(("def f(x):\n", " return x\n", "x", "(", ")", "=", "1", "\n", "\x00", "for ")),
    max_size=30,
).map("".join))  # fmt: skip
def test_any_program_has_a_share_of_the_gold(task, program):
    for match in gold_matches(task, program).values():
        assert 0 <= match.matched <= match.total

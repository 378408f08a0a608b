"""Mathematics with an interpreter, over runs that are scripted and never executed."""

import asyncio

import pytest

from espalier.config import Profile
from espalier.environments import EnvironmentLostError, ProgramBrokeSandboxError
from espalier.environments.contract import sandbox_losses
from espalier.environments.interpreter import observed
from espalier.records import (
    FinalAnswer,
    Malformed,
    ToolCall,
    ToolCalls,
)
from espalier.records.trajectory import FinishReason
from espalier.sandbox import SandboxLost, SandboxRefused, SandboxTimeout, SandboxUnavailable
from espalier_environments.python_math import PythonMath
from tests.factories.python_math import TASK, ScriptedRuns, ended


def family(*, max_turns=4, **settings):
    section = {"name": "python_math", **settings}
    content = {"environment": section, "episode": {"max_turns": max_turns}}
    return PythonMath(Profile.model_validate(content))


def environment(runs, task=TASK, *, checks=None, **settings):
    math = family(**settings)
    environments = math.environments_by(math.tools(), lambda _: math.rules_over(runs, checks))
    episode = environments(task)
    episode.reset(task)
    return episode


def program(code):
    return ToolCalls((ToolCall(name="python", arguments={"code": code}),))


def play(environment, *actions):
    async def played():
        steps = [await environment.step(action) for action in actions]
        return steps, await environment.score()

    return asyncio.run(played())


def test_an_episode_runs_its_program_reads_it_and_answers():
    runs = ScriptedRuns(ended(b"84\n"))
    math = environment(runs)
    steps, reward = play(math, program("print(12*7)"), FinalAnswer(r"\boxed{84}"))
    assert [[m.content for m in step.messages] for step in steps] == [["84"], []]
    assert runs.codes == ["print(12*7)"]
    assert math.tool_results[0].succeeded
    assert math.finish_reason is FinishReason.ANSWERED
    assert reward == {"outcome": 1.0, "format": 0.1}
    assert runs.num_ends == 1


def test_credit_forgives_part_of_a_wrong_answer():
    one = program("print(1)")
    together = ToolCalls(one.calls + one.calls)  # a message counts once, whatever its calls
    actions, runs = (one, one, together, FinalAnswer("85")), [ended(b"1")] * 4
    _, strict = play(environment(ScriptedRuns(*runs), max_turns=6), *actions)
    _, credited = play(
        environment(ScriptedRuns(*runs), max_turns=6, credit_per_message=0.05), *actions
    )
    assert strict == {"outcome": -1.0, "format": 0.1}
    assert credited["outcome"] == pytest.approx(-0.7)


@pytest.mark.parametrize(
    "action", [FinalAnswer(r"\boxed{ }"), FinalAnswer(" "), Malformed("no tags at all")]
)
def test_an_answer_that_says_nothing_earns_nothing_for_its_format(action):
    math = environment(ScriptedRuns())
    _, reward = play(math, action)
    assert math.finish_reason is FinishReason.PARSE_ERROR
    assert reward == {"outcome": -1.0, "format": 0.0}


def test_a_refused_program_is_something_to_read_and_no_loss():
    math = environment(ScriptedRuns(SandboxRefused("too long")))
    step = asyncio.run(math.step(program("print(1)")))
    assert step.messages[0].content == "Refused: too long"
    assert not math.tool_results[0].succeeded


def test_a_program_that_broke_its_sandbox_is_a_wrong_answer():
    broke = ProgramBrokeSandboxError("the program ended its sandbox: gone")
    runs = ScriptedRuns(ended(b"84\n"), broke)
    math = environment(runs)
    calls = program("print(12*7)").calls + program("attack()").calls + program("print(1)").calls
    (step,), reward = play(math, ToolCalls(calls))
    assert step.finish_reason is FinishReason.PROGRAM_BROKE_SANDBOX
    assert reward == {"outcome": -1.0, "format": 0.0}
    assert [result.succeeded for result in math.tool_results] == [True, False]
    assert "gone" in math.tool_results[-1].content
    assert (len(runs.codes), runs.num_ends) == (2, 1)


@pytest.mark.parametrize("by_program", [True, False])
def test_a_lost_sandbox_says_whose_doing_it_was(by_program):
    error = SandboxLost("gone")
    error.by_program = by_program
    expected = ProgramBrokeSandboxError if by_program else EnvironmentLostError
    with pytest.raises(expected, match="gone"), sandbox_losses():
        raise error
    with pytest.raises(EnvironmentLostError), sandbox_losses():
        raise SandboxTimeout("no sandbox became free")
    with pytest.raises(SandboxUnavailable), sandbox_losses():
        raise SandboxUnavailable("no bwrap")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ended(), "(nothing printed)"),
        (ended(b"1\n", b"ValueError: no\n", status=1), "1\nValueError: no"),
        (ended(b"1\n", killed_by="wall_time"), "1\nTimeoutError: the program took too long"),
        (ended(killed_by="memory"), "Killed: limit of memory"),
        (ended(b"\xff\xfe1"), "\ufffd\ufffd1"),
    ],
)
def test_how_a_program_ended_is_what_the_policy_reads(result, text):
    assert observed(result, 512) == text

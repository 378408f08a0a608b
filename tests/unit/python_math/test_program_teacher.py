"""The teacher of mathematics, in an environment whose runs are scripted."""

from functools import partial

import pytest

from espalier.environments import EnvironmentLostError, ProgramBrokeSandboxError
from espalier.environments.demonstrations import Rejected
from espalier.environments.teaching import ScriptTeacher
from espalier.records import ToolCall
from espalier_environments.python_math.questions import (
    UNKNOWN_NAME,
    MathQuestion,
    program_script,
)
from tests.factories.python_math import TASK, ScriptedRuns, ended, environments_over

QUESTION = MathQuestion(TASK, "times", "x = 12\nx *= 7\nprint(x)")


def demonstrated(runs, detour="", **limits):
    teacher = ScriptTeacher(environments_over(runs, **limits))
    taken = QUESTION.detour_taken(detour)
    begin = partial(program_script, QUESTION, detour=bool(taken))
    return teacher.demonstrate(TASK, begin, detour=taken)


def test_a_demonstration_is_what_was_run_and_verified():
    runs = ScriptedRuns(ended(b"84\n"))
    trajectory = demonstrated(runs)
    assert runs.codes == [QUESTION.program]
    assert trajectory.answer == "84"
    assert trajectory.reward["outcome"] == 1.0
    assert [m.role for m in trajectory.messages] == ["user", "assistant", "tool", "assistant"]
    called = ToolCall(name="python", arguments={"code": QUESTION.program})
    assert trajectory.messages[1].tool_calls == (called,)
    assert trajectory.messages[1].thought == "times"
    assert trajectory.tool_results[0].content == trajectory.messages[2].content == "84"


def test_a_detour_reads_an_error_and_then_the_result():
    error = ended(b"", b"NameError: name 'xx' is not defined\n", status=1)
    runs = ScriptedRuns(error, ended(b"84\n"))
    trajectory = demonstrated(runs, UNKNOWN_NAME)
    assert runs.codes == ["x = 12\nx *= 7\nprint(xx)", QUESTION.program]
    assert trajectory.detour == UNKNOWN_NAME
    assert [result.succeeded for result in trajectory.tool_results] == [False, True]


@pytest.mark.parametrize(
    ("result", "max_turns", "reason"),
    [
        (ended(b"85\n"), 4, "wrong_answer"),
        (ended(b"", b"SyntaxError\n", status=1), 4, "program_failed"),
        (ended(b"no number\n"), 4, "program_failed"),
        (ended(b"84\n"), 1, "too_few_turns"),
        (ProgramBrokeSandboxError("gone"), 4, "program_broke_sandbox"),
    ],
)
def test_what_cannot_be_verified_is_refused_with_its_reason(result, max_turns, reason):
    runs = ScriptedRuns(result)
    assert demonstrated(runs, max_turns=max_turns) == Rejected(reason)
    assert runs.num_ends == 1


def test_a_demonstration_lost_from_outside_is_played_again():
    lost = EnvironmentLostError("gone")
    runs = ScriptedRuns(lost, lost, ended(b"84\n"))
    assert demonstrated(runs).answer == "84"
    assert runs.num_ends == 3  # each attempt gives back what it held
    runs = ScriptedRuns(lost, lost, lost)
    assert demonstrated(runs) == Rejected("sandbox_lost")
    assert runs.num_ends == 3

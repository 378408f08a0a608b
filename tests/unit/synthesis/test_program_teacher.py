"""The teacher of mathematics, in an environment whose runs are scripted."""

import pytest

from espalier.config import RewardConfig
from espalier.environments import EnvironmentLostError
from espalier.environments.python_math import (
    PYTHON_GRAMMAR,
    Program,
    PythonMath,
    PythonMathConfig,
    parse_action,
)
from espalier.environments.python_math.teacher import UNKNOWN_NAME, MathQuestion, ProgramTeacher
from espalier.synthesis.teacher import Rejected
from tests.unit.environments.test_python_math import TASK, ScriptedRuns, ended

QUESTION = MathQuestion(TASK, "times", "x = 12\nx *= 7\nprint(x)")


class Environments:
    """Gives one environment over scripted runs."""

    grammar = PYTHON_GRAMMAR

    def __init__(self, *results, max_turns=4):
        self.runs = ScriptedRuns(*results)
        self._max_turns = max_turns

    def __call__(self, task):
        return PythonMath(
            task,
            self.runs,
            max_turns=self._max_turns,
            config=PythonMathConfig(),
            reward=RewardConfig(),
        )


def test_a_demonstration_is_what_was_run_and_verified():
    environments = Environments(ended(b"84\n"))
    trajectory = ProgramTeacher(environments).demonstrate(QUESTION)
    assert environments.runs.codes == [QUESTION.program]
    assert trajectory.answer == "84"
    assert trajectory.reward["outcome"] == 1.0
    assert [m.role for m in trajectory.messages] == ["user", "assistant", "tool", "assistant"]
    assert parse_action(trajectory.messages[1].content) == Program(QUESTION.program)
    assert trajectory.tool_calls[0].result == trajectory.messages[2].content == "84"


def test_a_detour_reads_an_error_and_then_the_result():
    error = ended(b"", b"NameError: name 'xx' is not defined\n", status=1)
    environments = Environments(error, ended(b"84\n"))
    trajectory = ProgramTeacher(environments).demonstrate(QUESTION, UNKNOWN_NAME)
    assert environments.runs.codes == ["x = 12\nx *= 7\nprint(xx)", QUESTION.program]
    assert trajectory.detour == UNKNOWN_NAME
    assert [call.succeeded for call in trajectory.tool_calls] == [False, True]


@pytest.mark.parametrize(
    ("environments", "reason"),
    [
        (Environments(ended(b"85\n")), "wrong_answer"),
        (Environments(ended(b"", b"SyntaxError\n", status=1)), "program_failed"),
        (Environments(ended(b"no number\n")), "program_failed"),
        (Environments(ended(b"84\n"), max_turns=1), "too_few_turns"),
        (Environments(EnvironmentLostError("gone")), "sandbox_lost"),
    ],
)
def test_what_cannot_be_verified_is_refused_with_its_reason(environments, reason):
    assert ProgramTeacher(environments).demonstrate(QUESTION) == Rejected(reason)

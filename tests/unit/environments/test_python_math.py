"""Mathematics with an interpreter, over runs that are scripted and never executed."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.config import RewardConfig
from espalier.environments import Answer, EnvironmentLostError, Malformed
from espalier.environments.python_math import (
    PYTHON_GRAMMAR,
    Program,
    PythonMath,
    PythonMathConfig,
    PythonMaths,
    observed,
    parse_action,
    shortened,
)
from espalier.records import Message, PolicyError, Task, TaskMetadata, Verifier
from espalier.records.trajectory import FinishReason
from espalier.sandbox import ExecResult, SandboxRefused

TASK = Task(
    task_id="t",
    prompt=(Message(role="user", content="12 times 7 ?"),),
    environment="python_math",
    verifier=Verifier(kind="math_equivalence", gold=("84",)),
    metadata=TaskMetadata(
        split="train", source="test", difficulty=1, extra={"kind": "story", "hops": 1}
    ),
)


def ended(stdout=b"", stderr=b"", *, status=0, killed_by=None):
    return ExecResult(
        stdout=stdout,
        stderr=stderr,
        exit_status=None if killed_by else status,
        signal=9 if killed_by else None,
        killed_by=killed_by,
        truncated=False,
        duration_s=0.01,
        cpu_s=0.01,
        max_rss_bytes=1,
    )


class ScriptedRuns:
    """Gives the results of a list, in order; an error of the list is raised."""

    def __init__(self, *results):
        self.codes = []
        self.num_ends = 0
        self._results = list(results)

    async def run(self, code):
        self.codes.append(code)
        result = self._results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def end(self):
        self.num_ends += 1


def environment(runs, *, max_turns=4, **settings):
    config = PythonMathConfig(**settings)
    return PythonMath(TASK, runs, max_turns=max_turns, config=config, reward=RewardConfig())


def play(environment, *actions):
    async def played():
        steps = [await environment.step(action) for action in actions]
        return steps, await environment.score()

    return asyncio.run(played())


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<think> times </think> <code> print(12*7) </code>", Program("print(12*7)")),
        ("I reason freely. <code>print(1)</code>\n", Program("print(1)")),
        ("<code>\n```python\nprint(1)\n```\n</code>", Program("print(1)")),
        (
            "<code>\n  x = 1\n  if x < 2:\n    print(x)\n</code>",
            Program("x = 1\nif x < 2:\n  print(x)"),
        ),
        ("<code> x = 1\nprint(x) </code>", Program("x = 1\nprint(x)")),
        (r"<think> </think> <answer> \boxed{84} </answer>", Answer("84")),
        ("<answer> 84 </answer>", Answer("84")),
    ],
)
def test_well_formed_actions_are_read(text, action):
    assert parse_action(text) == action


@pytest.mark.parametrize(
    "text",
    [
        "",
        "84",
        "<code> </code>",
        "<answer> </answer>",
        "<code> print(1)",
        "</code> print(1) <code>",
        "<answer> 84 </answer> and more",
        "<interpreter> 84 </interpreter> <answer> 84 </answer>",
        "<code> print(1) </code> <interpreter>",
        "<think> <code> </think>",
    ],
)
def test_anything_else_is_malformed(text):
    assert isinstance(parse_action(text), Malformed)


@given(st.lists(st.sampled_from([*PYTHON_GRAMMAR.tags, "```", "x", "\n", "\\boxed{"])).map("".join))
def test_no_mixture_of_tags_breaks_the_parser(text):
    action = parse_action(text)
    assert isinstance(action, Program | Answer | Malformed)
    if isinstance(action, Program):
        assert action.code.strip()


def test_an_episode_runs_its_program_reads_it_and_answers():
    runs = ScriptedRuns(ended(b"84\n"))
    math = environment(runs)
    steps, reward = play(math, "<code> print(12*7) </code>", r"<answer> \boxed{84} </answer>")
    assert [step.observation for step in steps] == ["84", None]
    assert runs.codes == ["print(12*7)"]
    assert math.tool_calls[0].succeeded
    assert math.finish_reason is FinishReason.ANSWERED
    assert reward == {"outcome": 1.0, "format": 0.1}
    assert runs.num_ends == 1


def test_a_wrong_answer_costs_one_and_credit_forgives_some_of_it():
    actions = ("<code> print(1) </code>", "<answer> 85 </answer>")
    _, strict = play(environment(ScriptedRuns(ended(b"1"))), *actions)
    _, credited = play(environment(ScriptedRuns(ended(b"1")), credit_per_message=0.05), *actions)
    assert strict == {"outcome": -1.0, "format": 0.1}
    assert credited["outcome"] == pytest.approx(-0.9)


def test_an_episode_without_an_answer_earns_nothing_for_its_format():
    math = environment(ScriptedRuns())
    _, reward = play(math, "no tags at all")
    assert math.finish_reason is FinishReason.PARSE_ERROR
    assert reward == {"outcome": -1.0, "format": 0.0}


def test_programs_are_counted_as_turns():
    runs = ScriptedRuns(ended(b"1"), ended(b"2"))
    math = environment(runs, max_turns=2)
    steps, _ = play(math, "<code> print(1) </code>", "<code> print(2) </code>")
    assert steps[-1].finish_reason is FinishReason.MAX_TURNS
    assert runs.num_ends == 1


def test_a_refused_program_is_something_to_read_and_no_loss():
    math = environment(ScriptedRuns(SandboxRefused("too long")))
    step = asyncio.run(math.step("<code> print(1) </code>"))
    assert step.observation == "Refused: too long"
    assert not math.tool_calls[0].succeeded


def test_a_lost_sandbox_is_a_loss_and_no_observation():
    math = environment(ScriptedRuns(EnvironmentLostError("sandbox: gone")))
    with pytest.raises(EnvironmentLostError, match="gone"):
        asyncio.run(math.step("<code> print(1) </code>"))


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ended(b"84\n"), "84"),
        (ended(), "(nothing printed)"),
        (ended(b"1\n", b"ValueError: no\n", status=1), "1\nValueError: no"),
        (ended(b"1\n", killed_by="wall_time"), "1\nTimeoutError: the program took too long"),
        (ended(killed_by="memory"), "Killed: limit of memory"),
        (ended(b"\xff\xfe1"), "\ufffd\ufffd1"),
    ],
)
def test_how_a_program_ended_is_what_the_policy_reads(result, text):
    assert observed(result, 512) == text


@given(st.text(max_size=200), st.integers(min_value=16, max_value=64))
def test_an_observation_is_never_longer_than_it_may_be(text, limit):
    assert len(shortened(text, limit)) <= max(limit, 16)
    assert shortened(text, 400) == text


def test_a_task_of_another_family_is_refused():
    maths = PythonMaths(
        sandboxes=None, config=PythonMathConfig(), max_turns=2, reward=RewardConfig()
    )
    with pytest.raises(PolicyError, match="no environment named 'search_qa'"):
        maths(TASK.model_copy(update={"environment": "search_qa"}))

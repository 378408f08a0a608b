"""The whole chain over a code environment: every program runs in a sandbox of this machine."""

import asyncio
import json
import signal
from pathlib import Path

import pytest

from espalier.config import Profile, load_profile
from espalier.environments import EnvironmentLostError
from espalier.environments.interpreter import SeparateRuns
from espalier.records import (
    FinalAnswer,
    ToolCall,
    ToolCalls,
)
from espalier.records.trajectory import read_trajectories
from espalier.rollout.episode import ToolRunner
from espalier.sandbox.choice import sandbox_pool
from espalier_environments.python_math import PythonMath
from espalier_environments.python_math.calculating import CalculatingRuns, Calculations
from espalier_environments.python_math.execution import Case, executed
from tests.factories.chains import chain_run
from tests.factories.python_math import TASK

PROFILES = Path(__file__).parents[2] / "pipelines" / "profiles"
GSM8K = Path(__file__).resolve().parents[3] / "shared" / "data" / "gsm8k"

pytestmark = pytest.mark.usefixtures("local_sandboxes")


ANSWER = FinalAnswer("84")


def family_with(**settings):
    sandbox = {"packages": [], "size": 1}
    section = {"name": "python_math", "sandbox": sandbox, **settings}
    return PythonMath(Profile.model_validate({"environment": section}))


def program(code):
    return ToolCalls((ToolCall(name="python", arguments={"code": code}),))


def play(environments, *actions):
    async def played():
        environment = environments(TASK)
        environment.reset(TASK)
        steps = [await environment.step(action) for action in actions]
        read = ["".join(message.content for message in step.messages) for step in steps]
        return read, await environment.score()

    return asyncio.run(played())


def test_programs_share_nothing_unless_the_profile_says_so(tmp_path):
    actions = (program("x = 84"), program("print(x)"), ANSWER)
    with family_with().environments(tmp_path) as over:
        (_, second, _), reward = play(over("train"), *actions)
        assert "NameError" in second
        assert reward["outcome"] == 1.0
    with family_with(session="stateful").environments(tmp_path) as over:
        assert play(over("train"), *actions)[0][1] == "84"
        assert "NameError" in play(over("train"), program("print(x)"), actions[2])[0][0]


def test_a_hostile_program_harms_one_observation_only(tmp_path):
    with family_with(code_timeout_s=1.0).environments(tmp_path) as over:
        observations, _ = play(
            over("train"),
            program("while True: pass"),
            program(f"open({str(tmp_path / 'out')!r}, 'w').write('x')"),
            program("import socket; socket.create_connection(('198.51.100.1', 80), 2)"),
            program("print(84)"),
            ANSWER,
        )
    assert "took too long" in observations[0]
    assert "Error" in observations[1]
    assert "Error" in observations[2]
    assert observations[3] == "84"
    assert not (tmp_path / "out").exists()


def test_a_lost_sandbox_ends_one_episode_and_no_other():
    math = family_with(session="stateful")
    with sandbox_pool(math.settings.sandbox, math.profile.kubernetes) as sandboxes:
        environments = math.environments_in(sandboxes)

        async def lost():
            environment = environments(TASK)
            environment.reset(TASK)
            await environment.step(program("x = 1"))
            (warm,) = sandboxes.pool._existing
            signal.pidfd_send_signal(warm.sandbox._process._first, signal.SIGKILL)
            await environment.step(program("print(x)"))

        with pytest.raises(EnvironmentLostError, match="sandbox"):
            asyncio.run(lost())
        assert play(environments, program("print(84)"), ANSWER)[0][0] == "84"


@pytest.mark.parametrize("code", ["while True: pass", "print(9 ** 9 ** 9)"])
def test_every_looping_program_is_judged_however_many_wait(code):
    """48 episodes over 4 sandboxes wait longer, one after the other, than one call may take."""
    math = family_with(code_timeout_s=0.2, sandbox={"packages": [], "size": 4})

    async def played(environments, tools):
        async def looped():
            environment = environments(TASK)
            environment.reset(TASK)
            step = await tools.run(environment.step, program(code))
            await tools.run(environment.step, FinalAnswer("85"))
            reward = await tools.run(environment.score)
            return step.messages[0].content, reward["outcome"]

        return await asyncio.gather(*(looped() for _ in range(48)), return_exceptions=True)

    with sandbox_pool(math.settings.sandbox, math.profile.kubernetes) as sandboxes:
        tools = ToolRunner(workers=0, timeout_s=1.5)
        episodes = asyncio.run(played(math.environments_in(sandboxes), tools))
    assert episodes == [("TimeoutError: the program took too long", -1.0)] * 48


def test_a_slow_program_is_cut_at_its_calls_time():
    math = family_with(code_timeout_s=30.0)

    async def played(environments):
        environment = environments(TASK)
        environment.reset(TASK)
        two = program("while True: pass").calls + program("print(1)").calls
        step = await ToolRunner(workers=0, timeout_s=1.0).run(environment.step, ToolCalls(two))
        return [message.content for message in step.messages]

    with sandbox_pool(math.settings.sandbox, math.profile.kubernetes) as sandboxes:
        read = asyncio.run(played(math.environments_in(sandboxes)))
    assert read == ["TimeoutError: the program took too long"] * 2


@pytest.fixture(scope="module")
def runs():
    math = family_with(sandbox={"packages": [], "size": 2})
    with sandbox_pool(math.settings.sandbox, math.profile.kubernetes) as sandboxes:
        yield SeparateRuns(sandboxes, math.settings.code_timeout_s)


@pytest.mark.parametrize(
    "code",
    [
        "x = 37\nx += 4 * 6\nprint(x)",
        "print(1 / 0)",
        "print(y)",
        "print(9 ** 99, -7 // 2.5)",
        "x = = 1",
    ],
)
def test_calculations_print_what_they_print_alone(runs, code):
    known = CalculatingRuns(runs._sandboxes, 5.0, Calculations())

    async def played():
        return [await one.run(code) for one in (runs, known, known)]

    alone, first, again = asyncio.run(played())
    assert (first.text, first.exit_status) == (alone.text, alone.exit_status)
    assert again is first


ORDERED_BY_HASH = """
def f(x):
    return x * ' '.join({'apple', 'pear', 'plum', 'quince', 'fig', 'lime', 'kiwi'})
"""
BY_ADDRESS = "class C: pass\ndef f(x):\n    return int(str(C()).split('0x')[1][:-1], 16) % 997 + x"
BY_FOLDER = "import os\ndef f(x):\n    return os.getcwd() + str(x)"
BY_PID = "import os\ndef f(x):\n    return os.getpid() + x"


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (ORDERED_BY_HASH, "not_deterministic"),
        (BY_ADDRESS, "not_deterministic"),
        (BY_FOLDER, "not_deterministic"),
        (BY_PID, "not_deterministic"),
        ("def f(x):\n    return sorted({'b', 'a'}) * x", [Case("1", "['a', 'b']")]),
        ("import math\ndef f(x):\n    return {'k': math.gcd(x, 6)}", [Case("1", "{'k': 1}")]),
    ],
)
def test_only_programs_that_repeat_themselves_elsewhere_are_taken(runs, written, found):
    assert asyncio.run(executed(written, ["1"], runs)) == found


def test_an_interpreter_of_its_own_shares_nothing_with_the_forks(runs):
    code = "import os\nprint(hash('a'), hex(id(len)), os.getcwd())"

    async def said(run):
        return (await run(code)).text.split()

    async def all_said():
        forks = [await said(runs.run) for _ in range(2)]
        return [*forks, await said(runs.run_afresh), await said(runs.run_afresh)]

    first, second, *fresh = asyncio.run(all_said())
    assert first[2] == second[2] == "/workspace"
    hashes, addresses, folders = zip(first, *fresh, strict=True)
    assert [len(set(one)) for one in (hashes, addresses, folders)] == [3, 3, 3]


def test_the_whole_chain_runs_over_sandboxes(tmp_path):
    profile = load_profile(PROFILES / "arithmetic-smoke.toml")
    manifests = chain_run(profile, tmp_path / "run")
    demonstrations = read_trajectories(tmp_path / "run" / "accepted" / "trajectories.parquet")
    assert demonstrations
    assert all(t.tool_results and t.reward["outcome"] == 1.0 for t in demonstrations)
    results = json.loads((tmp_path / "run" / "evaluation" / "results.json").read_bytes())
    assert results["environment"]["name"] == "python_math"
    assert results["eval"]["trained"]["n"] == profile.synthesis.heldout_tasks
    assert results["eval"]["trained"]["finish_reasons"].keys() <= {
        "answered", "max_turns", "max_tokens", "parse_error",
    }  # fmt: skip
    again = chain_run(profile, tmp_path / "run")
    assert {name: m.content for name, m in again.items()} == {
        name: m.content for name, m in manifests.items()
    }


@pytest.mark.skipif(not GSM8K.is_dir(), reason=f"{GSM8K} is not here")
def test_problems_in_gsm8ks_format_are_demonstrated_by_their_notes(tmp_path):
    profile = load_profile(
        PROFILES / "arithmetic-smoke.toml",
        [
            f"environment.problems={GSM8K / 'train.jsonl'}",
            f"environment.heldout_problems={GSM8K / 'test.jsonl'}",
            "synthesis.trajectories=8",
            "validation.max_question_words=200",
        ],
    )
    chain_run(profile, tmp_path / "run", "validate")
    demonstrations = read_trajectories(tmp_path / "run" / "accepted" / "trajectories.parquet")
    assert len(demonstrations) >= 6
    assert all("print(" in t.tool_results[-1].call.arguments["code"] for t in demonstrations)

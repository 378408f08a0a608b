"""Triples are proven, and hostile programs contained, in sandboxes of this machine."""

import asyncio
import threading

import pytest

from espalier.config import Profile
from espalier.environments import family_of
from espalier.environments.interpreter import SeparateRuns
from espalier.environments.proposals import ProposalRequest
from espalier.records import FinalAnswer
from espalier.sandbox.choice import sandbox_pool
from espalier_environments.python_math.execution import executed

PROFILE = Profile.model_validate(
    {
        "environment": {
            "name": "python_math",
            "code_timeout_s": 2.0,
            "sandbox": {"packages": [], "size": 2},
        },
        "self_play": {"name": "absolute_zero"},
    }
)


pytestmark = pytest.mark.usefixtures("local_sandboxes")


@pytest.fixture(scope="module")
def posed(tmp_path_factory):
    folders = tmp_path_factory.mktemp("k"), tmp_path_factory.mktemp("a")
    return family_of(PROFILE).proposer(*folders).propose(ProposalRequest(12, (), (), "a"))


def answered(environments, task, text):
    async def played():
        environment = environments(task)
        environment.reset(task)
        await environment.step(FinalAnswer(f"\\boxed{{{text}}}"))
        return (await environment.score())["outcome"]

    return asyncio.run(played())


@pytest.mark.parametrize("session", ["stateless", "stateful"])
def test_only_gold_answers_of_posed_tasks_are_paid(posed, session, tmp_path):
    assert len(posed.tasks) == 12
    environment = PROFILE.environment.model_copy(update={"session": session})
    profile = PROFILE.model_copy(update={"environment": environment})
    with family_of(profile).environments(tmp_path) as over:
        for task in posed.tasks:
            assert answered(over("train"), task, task.verifier.gold[0]) == 1.0
            assert answered(over("train"), task, "-12345") == -1.0


def test_equal_seeds_pose_equal_tasks_in_other_sandboxes(posed, tmp_path):
    again = (
        family_of(PROFILE).proposer(tmp_path, tmp_path).propose(ProposalRequest(12, (), (), "a"))
    )
    assert again == posed


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("def f(x):\n while True: pass", "program_fails"),
        ("def f(x):\n return 'a' * 10**10", "program_fails"),
        ("import os\ndef f(x):\n while True: os.fork()", "program_fails"),
        ("import os\ndef f(x):\n os._exit(0)", "prints_besides"),
        ("def f(x):\n print(7)\n return 7", "prints_besides"),
        ("import time\ndef f(x):\n return time.perf_counter_ns()", "not_deterministic"),
        ("import os\ndef f(x):\n return os.urandom(4).hex()", "not_deterministic"),
        ("def f(x):\n return {x}", "output_no_plain_value"),
        ("def f(x):\n return open('/etc/hostname').read(9999)", "program_fails"),
    ],
)
def test_programs_that_nobody_screened_are_refused_by_what_they_do(program, fault):
    with sandbox_pool(PROFILE.environment.sandbox, PROFILE.kubernetes) as sandboxes:
        runs = SeparateRuns(sandboxes, 2.0)
        assert asyncio.run(executed(program, ["3"], runs)) == fault


def test_an_address_is_refused_even_where_both_runs_agree():
    with sandbox_pool(PROFILE.environment.sandbox, PROFILE.kubernetes) as sandboxes:
        found = asyncio.run(executed("def f(x):\n return f", ["3"], SeparateRuns(sandboxes, 2.0)))
    assert found in ("not_deterministic", "output_no_plain_value")


def test_a_file_of_one_run_is_gone_in_the_next():
    program = (
        "import os\ndef f(x):\n was = os.path.exists('mark')\n open('mark', 'w').close()\n"
        " return was"
    )
    with sandbox_pool(PROFILE.environment.sandbox, PROFILE.kubernetes) as sandboxes:
        [case] = asyncio.run(executed(program, ["3"], SeparateRuns(sandboxes, 2.0)))
    assert case.output == "False"


def test_a_phase_leaves_no_sandbox_behind(tmp_path):
    proposer = family_of(PROFILE).proposer(tmp_path, tmp_path)
    assert len(proposer.propose(ProposalRequest(2, (), (), "b")).tasks) == 2
    assert "espalier-sandboxes" not in {thread.name for thread in threading.enumerate()}

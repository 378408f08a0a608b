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


def test_only_gold_answers_of_posed_tasks_are_paid(posed, tmp_path):
    assert len(posed.tasks) == 12
    with family_of(PROFILE).environments(tmp_path) as over:
        for task in posed.tasks:
            assert answered(over("train"), task, task.verifier.gold[0]) == 1.0
            assert answered(over("train"), task, "-12345") == -1.0


@pytest.fixture(scope="module")
def runs():
    with sandbox_pool(PROFILE.environment.sandbox, PROFILE.kubernetes) as sandboxes:
        yield SeparateRuns(sandboxes, 2.0)


ORDERED_BY_HASH = "def f(x):\n return ' '.join({'apple', 'pear', 'plum', 'quince', 'fig', 'lime'})"
BY_ADDRESS = "class C: pass\ndef f(x):\n return int(str(C()).split('0x')[1][:-1], 16) % 997 + x"


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("def f(x):\n while True: pass", "program_fails"),
        ("def f(x):\n return 'a' * 10**10", "program_fails"),
        ("import os\ndef f(x):\n while True: os.fork()", "program_fails"),
        ("def f(x):\n return open('/etc/hostname').read(9999)", "program_fails"),
        ("import os\ndef f(x):\n os._exit(0)", "prints_besides"),
        ("def f(x):\n print(7)\n return 7", "prints_besides"),
        ("import os\ndef f(x):\n return os.urandom(4).hex()", "not_deterministic"),
        ("import os\ndef f(x):\n return os.getcwd() + str(x)", "not_deterministic"),
        (ORDERED_BY_HASH, "not_deterministic"),
        (BY_ADDRESS, "not_deterministic"),
        ("def f(x):\n return {x}", "output_no_plain_value"),
    ],
)
def test_programs_that_nobody_screened_are_refused_by_what_they_do(runs, program, fault):
    assert asyncio.run(executed(program, ["3"], runs)) == fault


def test_an_address_is_refused_even_where_both_runs_agree(runs):
    found = asyncio.run(executed("def f(x):\n return f", ["3"], runs))
    assert found in ("not_deterministic", "output_no_plain_value")


def test_a_file_of_one_run_is_gone_in_the_next(runs):
    program = (
        "import os\ndef f(x):\n was = os.path.exists('mark')\n open('mark', 'w').close()\n"
        " return was"
    )
    [case] = asyncio.run(executed(program, ["3"], runs))
    assert case.output == "False"


def test_a_phase_leaves_no_sandbox_behind(tmp_path):
    before = _threads_of_sandboxes()
    proposer = family_of(PROFILE).proposer(tmp_path, tmp_path)
    assert len(proposer.propose(ProposalRequest(2, (), (), "b")).tasks) == 2
    assert _threads_of_sandboxes() == before


def _threads_of_sandboxes():
    return sum(thread.name == "espalier-sandboxes" for thread in threading.enumerate())

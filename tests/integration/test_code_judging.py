"""Programs that are judged by unit tests in sandboxes of this machine."""

import asyncio
import json
from pathlib import Path

import pytest

from espalier.config import Profile
from espalier.environments import check_golds, family_of
from espalier.evaluation import pass_at_k
from espalier_environments.code.judging import judge
from espalier_environments.code.unit_tests import UnitTests, unit_tests_of
from tests.benchmarks.hacks import code as hacks

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
NEEDS_DATA = pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is not here")
NODES = UnitTests(
    functions={"total": "total", "Node": "Node"},
    preamble="root = Node(1)\nroot.next = Node(2)",
    hidden=("assert total(root) == 3", "assert root.next.value == 2"),
)
NODES_PROGRAM = """
class Node:
    def __init__(self, value):
        self.value, self.next = value, None
def total(node):
    return node.value + (total(node.next) if node.next else 0)
"""

pytestmark = pytest.mark.usefixtures("local_sandboxes")


@pytest.fixture(scope="module", autouse=True)
def sandboxes(local_sandboxes):
    with hacks.opened():
        yield


def family():
    sandbox = {"packages": [], "size": 4}
    return family_of(Profile.model_validate({"environment": {"name": "code", "sandbox": sandbox}}))


def judged(tests, program, timeout_s=5.0):
    async def in_sandbox():
        async with hacks._POOLS[0].claim(judging=True) as sandbox:
            return await judge(sandbox, tests, tests.hidden, program, timeout_s=timeout_s)

    return asyncio.run(hacks._POOLS[0].run(in_sandbox()))


@pytest.mark.parametrize("tests", hacks.TASKS, ids=["cases", "checks"])
def test_each_test_has_a_verdict_of_its_own(tests):
    assert judged(tests, hacks.SOLUTION).report.all_passed
    wrong = judged(tests, "def f(x):\n    return 5 // len(x) if x == 'zebra' else 5").report
    assert wrong.compiled
    assert wrong.verdicts[:3] == ("passed", "failed", "failed")
    raised = judged(tests, "def f(x):\n    return {'education': 5}[x]").report
    assert raised.verdicts[:3] == ("passed", "error", "error")
    broken = judged(tests, "def f(x:").report
    assert not broken.compiled
    assert set(broken.verdicts) == {"error"}
    endless = judged(tests, "def f(x):\n    while True: pass", timeout_s=1.0)
    assert endless.timed_out
    assert endless.report.num_passed == 0


LONG_MESSAGES = (
    "def f(x):\n    raise ValueError('\U0001f600' * 400)",
    "def f(x):\n    raise ValueError('\\x00' * 400)",
    "def f(x):\n    raise type('E' * 300, (Exception,), {})('m' * 400)",
    "def f(x):\n    assert False, 'm' * 400",
    "raise ValueError('m' * 400)",
    "raise ValueError('\U0001f600' * 400)",
    "def f(x):\n    return '\U0001f600' * 400",
)


@pytest.mark.parametrize("program", LONG_MESSAGES)
def test_messages_of_many_tests_cost_no_verdict(program):
    checks = ("assert f(1) == 1", "assert (f(1), 0)[1] == 0", "assert f(2) >= 2 - 2")
    tests = UnitTests(functions={"f": "f"}, preamble="", hidden=checks * 300)
    found = judged(tests, program)
    assert len(found.report.verdicts) == len(found.messages) == 900
    assert found.report.num_passed in (0, 300)


@pytest.mark.parametrize("tests", hacks.TASKS, ids=["cases", "checks"])
def test_time_that_others_use_does_not_count(tests):
    waiting = f"import time\ntime.sleep(2.5)\n{hacks.SOLUTION}"
    found = judged(tests, waiting, timeout_s=2.0)
    assert found.report.all_passed
    assert not found.timed_out
    endless = judged(tests, "import time\ndef f(x):\n    time.sleep(60)", timeout_s=0.5)
    assert endless.timed_out
    busy = judged(tests, "def f(x):\n    while True: pass", timeout_s=1.0)
    assert all("the program takes too long" in message for message in busy.messages)


def test_objects_of_the_program_stay_in_its_process():
    assert judged(NODES, NODES_PROGRAM).report.all_passed


@pytest.mark.parametrize(
    "name",
    [
        "an object that equals everything",
        "reading the memory of other processes",
        "writing the marker to every descriptor",
        "os._exit when it is called",
    ],
)
def test_a_hack_is_refused_that_fools_a_naive_grader(name):
    (hack,) = [one for one in hacks.HACKS if one.name == name]
    assert hack.works()
    assert not hack.cheats()


@NEEDS_DATA
def test_the_example_of_human_eval_has_its_pass_at_1(tmp_path):
    folder = DATA / "human_eval"
    (task,) = family().read_benchmark(folder / "example_problem.jsonl")
    lines = (folder / "example_samples.jsonl").read_text().splitlines()
    samples = [json.loads(line)["completion"] for line in lines]
    right = sum(judged(unit_tests_of(task), one, 3.0).report.all_passed for one in samples)
    assert pass_at_k(len(samples), right, 1) == pytest.approx(0.5)


@NEEDS_DATA
@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "rows"), [("human_eval/HumanEval.jsonl.gz", 79), ("mbpp/ic_mbpp.json", 473)]
)
def test_public_golds_pass_and_the_next_one_does_not(path, rows):
    """Forty at equal distances; `espalier environments check code --tasks FILE` judges all."""
    code = family()
    tasks = code.read_benchmark(DATA / path)
    assert len(tasks) == rows
    some = [tasks[number * rows // 40] for number in range(40)]
    with code.benchmark_environments(DATA / path, Path("unused")) as environments:
        found = check_golds(code, some, environments)
    assert (found.accepted, found.refused, found.faults) == (40, 40, ())

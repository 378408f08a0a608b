"""Answers that are proven by execution, over runs in processes of their own."""

import asyncio
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.environments.python_math.execution import Case, case_arguments, is_proven, returning
from espalier.records import FinalAnswer
from espalier.sandbox import SandboxRefused
from tests.factories.python_math import ScriptedRuns, ended
from tests.factories.records import make_task

from .test_python_math import environment

PROGRAM = "def f(x):\n    x += 14\n    x *= 3\n    return x"


class ProcessRuns:
    """Runs the scripts of these tests, all of which are ours, in a Python without site packages."""

    async def run(self, code):
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code], capture_output=True, timeout=20, check=False
        )
        return ended(done.stdout, done.stderr, status=done.returncode)

    def end(self):
        pass


def task(asked, cases, gold, **arguments):
    return make_task(
        question="f?",
        gold=(gold,),
        environment="python_math",
        verifier="execution",
        arguments={"asked": asked, "cases": case_arguments(cases), **arguments},
        kind="deduction",
    )


DEDUCTION = task("output", [Case("37", "153")], "153")
ABDUCTION = task("input", [Case("37", "153")], "37", program=PROGRAM)
INDUCTION = task(
    "program", [Case("1", "45"), Case("2", "48")], "(x + 14) * 3", program=PROGRAM, parameters="x"
)
EVEN = task("input", [Case("2", "True")], "2", program="def f(x):\n    return x % 2 == 0")
LISTS = task("output", [Case("3", "[1, 'a']")], "[1, 'a']")
TWO = task("input", [Case("3, 4", "7")], "3, 4", program="def f(a, b):\n    return a + b")


def proven(one, answer):
    return asyncio.run(is_proven(one, answer, ProcessRuns()))


@pytest.mark.parametrize("one", [DEDUCTION, ABDUCTION, INDUCTION, EVEN, LISTS, TWO])
def test_every_gold_answer_is_accepted(one):
    assert proven(one, one.verifier.gold[0])


@pytest.mark.parametrize(
    ("one", "answer"),
    [
        (DEDUCTION, " 153 "),
        (LISTS, '[1,"a"]'),
        (EVEN, "8"),
        (EVEN, "-6"),
        (TWO, "0, 7"),
        (TWO, "7,0"),
        (INDUCTION, "3 * x + 42"),
        (INDUCTION, "lambda y: 42 + y + y + y"),
        (INDUCTION, "f = lambda x: sum([x] * 3) + 42"),
    ],
)
def test_other_right_answers_are_accepted(one, answer):
    assert proven(one, answer)


@pytest.mark.parametrize(
    ("one", "answer"),
    [
        (DEDUCTION, "154"),
        (DEDUCTION, "153.0"),
        (DEDUCTION, "'153'"),
        (DEDUCTION, "51 * 3"),
        (DEDUCTION, ""),
        (DEDUCTION, "x"),
        (DEDUCTION, "1" * 5000),
        (DEDUCTION, None),
        (DEDUCTION, "True"),
        (ABDUCTION, "38"),
        (ABDUCTION, "153"),
        (ABDUCTION, "30 + 7"),
        (ABDUCTION, "37, 1"),
        (ABDUCTION, "37) or (38"),
        (EVEN, "7"),
        (INDUCTION, "3 * x"),
        (INDUCTION, "45 if x == 1 else 0"),
        (INDUCTION, "print(45) or print(48)"),
        (INDUCTION, "(x + 14) * 3 + print('45')"),
        (INDUCTION, "__import__('os')._exit(0)"),
        (INDUCTION, "lambda: 45"),
        (INDUCTION, "x +"),
    ],
)
def test_near_misses_and_tricks_are_refused(one, answer):
    assert not proven(one, answer)


def test_an_answer_that_is_data_never_becomes_code():
    class Looking(ProcessRuns):
        async def run(self, code):
            assert "\n__import__" not in code
            return await super().run(code)

    for answer in ("37,)))\n__import__('os').abort()\n#", "'''\n__import__('os').abort()"):
        for one in (DEDUCTION, ABDUCTION, INDUCTION):
            assert not asyncio.run(is_proven(one, answer, Looking()))


@given(st.text(max_size=60))
@settings(deadline=None, max_examples=200)
def test_no_text_breaks_the_script_that_is_made_of_it(text):
    class Parsing:
        async def run(self, code):
            compile(code, "script", "exec")
            return ended(b"no", status=0)

    for one in (DEDUCTION, ABDUCTION, INDUCTION):
        assert not asyncio.run(is_proven(one, text, Parsing()))


def test_a_script_that_fails_or_is_refused_proves_nothing():
    for result in (ended(b"153\n", status=1), ended(killed_by="wall_time"), SandboxRefused("no")):
        assert not asyncio.run(is_proven(ABDUCTION, "37", ScriptedRuns(result)))


def test_what_a_program_returns_is_printed_case_by_case():
    script = returning(PROGRAM, ["1", "2"])
    assert asyncio.run(ProcessRuns().run(script)).stdout == b"45\n48\n"


@pytest.mark.parametrize(("answer", "outcome"), [("37", 1.0), ("38", -1.0)])
def test_an_episode_is_scored_by_execution(answer, outcome):
    episode = environment(ScriptedRuns(), ABDUCTION, checks=ProcessRuns())

    async def played():
        await episode.step(FinalAnswer(f"\\boxed{{{answer}}}"))
        return await episode.score()

    assert asyncio.run(played())["outcome"] == outcome

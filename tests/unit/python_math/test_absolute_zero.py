"""Triples of program, input and output: screened, executed twice, told, apart from held-out."""

import asyncio
import contextlib
import io
import json
import random
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.completions import ModelRefusal, parsed_answer
from espalier.config import EndpointConfig
from espalier.environments import EnvironmentLostError, ProgramBrokeSandboxError
from espalier.environments.proposals import ProposalRequest
from espalier.sandbox import SandboxRefused
from espalier_environments.python_math.absolute_zero.programs import (
    Proposal,
    Screened,
    chain_proposals,
    screened,
)
from espalier_environments.python_math.absolute_zero.proposer import (
    ChainDrafts,
    TaskDraft,
    all_executed,
    num_inputs,
    tasks_from,
    triple_task,
)
from espalier_environments.python_math.absolute_zero.teacher import (
    ProposedProgram,
    ProposedPrograms,
    TeacherDrafts,
    draft_of,
)
from espalier_environments.python_math.arithmetic import Calculation, Change, calculation_split
from espalier_environments.python_math.execution import (
    FRESH_RUNS,
    Case,
    executed,
    is_proven,
)
from tests.factories.python_math import ProcessRuns, ScriptedRuns, ended
from tests.fakes.endpoint_double import Scripted, completion, running_double

from ..synthesis.test_hostile_answers import content_of, mutated

ASKED = ("output", "input", "program")
CHAIN_LINE = {
    r"x \+= (\d+)$": "add",
    r"x -= (\d+)$": "take",
    r"x \*= (\d+)$": "times",
    r"x //= (\d+)$": "share",
    r"x \+= (\d+) \* (\d+)$": "add groups",
    r"x -= (\d+) \* (\d+)$": "take groups",
}


class Interpreted:
    """Runs the chains of these tests in this process, without starting a Python each."""

    async def run(self, code):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, {})
        return ended(printed.getvalue().encode())

    async def run_afresh(self, code):
        return await self.run(code)


def order(count=40, seed="a", known=(), earned=None):
    return ProposalRequest(count, (), known, seed, earned or {})


def posed(asked=ASKED, **fields):
    one = order(**fields)
    drafts = ChainDrafts(asked)(one)
    return tasks_from(drafts, asyncio.run(all_executed(drafts, Interpreted())), one)


def chain_of(program, start):
    changes = []
    for line in program.splitlines()[1:-1]:
        for pattern, label in CHAIN_LINE.items():
            if found := re.match(pattern, line.strip()):
                changes.append(Change(label, tuple(map(int, found.groups()))))
    return Calculation(start, tuple(changes))


def test_every_posed_task_is_proven_by_running_its_gold_answer():
    for task in posed(count=12).tasks:
        assert asyncio.run(is_proven(task, task.verifier.gold[0], ProcessRuns()))
        assert not asyncio.run(is_proven(task, "'no'", ProcessRuns()))


def test_all_three_kinds_of_all_lengths_are_posed():
    tasks = posed(count=120).tasks
    assert len(tasks) == 120
    kinds = Counter((task.extra["kind"], task.extra["hops"]) for task in tasks)
    assert {family for family, _ in kinds} == {"deduction", "abduction", "induction"}
    assert {hops for _, hops in kinds} == {1, 2, 3, 4}
    assert {(task.environment, task.metadata.split) for task in tasks} == {("python_math", "train")}
    only = posed(("input",), count=20).tasks
    assert {task.extra["kind"] for task in only} == {"abduction"}


def test_no_dev_or_heldout_story_computes_a_drawn_triple():
    for asked in ASKED:
        for steps in (1, 2, 3, 4):
            for proposal in chain_proposals(steps, num_inputs(asked), random.Random(steps)):
                for text in proposal.inputs:
                    chain = chain_of(proposal.program, int(text))
                    assert len(chain.changes) == steps
                    assert calculation_split(chain) == "train"


def test_what_is_left_out_is_not_told():
    for task in posed(count=60).tasks:
        outputs = [output for _, output in task.arguments["cases"]]
        words = re.findall(r"-?\d+", task.question)
        match task.extra["kind"]:
            case "deduction":
                assert outputs[0] not in words
            case "abduction":
                assert f"f({task.verifier.gold[0]})" not in task.question
                assert outputs[0] in words
            case "induction":
                assert "def" not in task.question
                hidden = [arguments for arguments, _ in task.arguments["cases"]]
                assert not any(f"f({arguments})" in task.question for arguments in hidden)
                assert len(hidden) == 3


@pytest.mark.slow
def test_equal_seeds_pose_equal_tasks_and_none_is_posed_twice():
    first = posed(seed="b")
    assert first == posed(seed="b")
    assert first.tasks != posed(seed="c").tasks
    again = posed(seed="b", known=first.tasks)
    assert again.refused["asked_before"] > 0
    ids = [task.task_id for task in (*first.tasks, *again.tasks)]
    assert len(set(ids)) == len(ids)


def test_kinds_that_earned_more_are_posed_more_often():
    earned = {
        f"{family} > {' > '.join(['add'] * steps)}": float(family == "abduction" and steps == 2)
        for family in ("deduction", "abduction", "induction")
        for steps in (1, 2, 3, 4)
    }
    found = Counter(
        (task.extra["kind"], task.extra["hops"]) for task in posed(count=60, earned=earned).tasks
    )
    assert found["abduction", 2] > 40


@pytest.mark.parametrize(
    ("fault", "programs"),
    {
        "not_python": ["def f(x):\n  return x +", "def f(x): return '\0'", "(" * 700 + ")" * 700],
        "program_too_long": ["def f(x): return x" + " " * 2000],
        "defines_no_f": ["def g(x): return x", "def f(x): return x\ndef f(x): return 2"],
        "arguments_of_another_shape": [
            "def f(): return 1", "def f(x=1): return x", "def f(*x): return x",
            "@str\ndef f(x): return x",
        ],
        "does_more_than_define": ["def f(x): return x\nf(1)"],
        "forbidden_module": [
            "def f(x):\n  import random\n  return x", "import os.path\ndef f(x): return x",
            "from time import time\ndef f(x): return time()", "from . import x\ndef f(x): return x",
        ],
        "forbidden_name": [
            "def f(x): return open(x)", "def f(x): return id(x)", "def f(x): return ().__class__",
            "def f(x): return __import__('os')", "from typing import sys as s\ndef f(x): return s",
            "import typing\ndef f(x): return typing.sys.modules",
            "from operator import attrgetter as g\ndef f(x): return g('a')(x)",
        ],
        "keeps_state": ["n = [0]\ndef f(x):\n  global n\n  return n"],
    }.items(),
)  # fmt: skip
def test_programs_that_must_not_run_are_refused_unread(fault, programs):
    assert [screened(program) for program in programs] == [fault] * len(programs)


@given(st.text(max_size=200))
@settings(max_examples=300)
def test_no_text_breaks_the_screening(text):
    assert isinstance(screened(text), str | Screened)
    assert isinstance(screened(f"def f(x):\n    return {text}"), str | Screened)


def cases_of(first, *fresh):
    """Cases of a program whose last result is that of all further interpreters too."""
    results = [first, *fresh, *fresh[-1:] * FRESH_RUNS]
    return asyncio.run(executed("def f(x): ...", ("1", "2"), ScriptedRuns(*results)))


@pytest.mark.parametrize(
    ("results", "fault"),
    [
        ([ended(b"1\n2\n"), ended(b"1\n3\n")], "not_deterministic"),
        ([ended(b"1\n2\n")] * FRESH_RUNS + [ended(b"2\n1\n")], "not_deterministic"),
        ([ended(b"1\n2\n"), ended(b"", status=1)], "program_fails"),
        ([ended(b"1\n", killed_by="wall_time")] * 2, "program_fails"),
        ([ended(b"1\n2\n3\n")] * 2, "prints_besides"),
        ([ended(b"")] * 2, "prints_besides"),
        *(
            ([ended(b"1\n" + said + b"\n")] * 2, "output_no_plain_value")
            for said in (b"<object at 0x7f>", b"[{3}]", b"nan", b"9" * 200,
                         b"(" * 100 + b")" * 100, b"\xff\xfe")
        ),
        ([SandboxRefused("no")], "program_refused"),
        ([EnvironmentLostError("gone")], "environment_lost"),
        ([ProgramBrokeSandboxError("gone")], "program_broke_sandbox"),
    ],
)  # fmt: skip
def test_what_a_sandbox_says_is_not_taken_for_granted(results, fault):
    assert cases_of(*results) == fault


def test_a_program_is_tried_in_interpreters_of_their_own():
    text = ended(b"[1, ('a', None)]\n{'k': -2.5}\n")
    runs = ScriptedRuns(*[text] * (1 + FRESH_RUNS))
    cases = asyncio.run(executed("def f(x): ...", ("1", "2"), runs))
    assert cases == [Case("1", "[1, ('a', None)]"), Case("2", "{'k': -2.5}")]
    assert (len(runs.codes), len(runs.fresh)) == (1 + FRESH_RUNS, FRESH_RUNS)
    assert len(set(runs.codes)) == 1


def test_taking_the_names_of_the_script_gains_nothing():
    program = """
def print(*_): pass
def repr(_): return '0'
literal_eval = write = show = scope = text = f = None
def f(x): return x + 1
"""
    found = asyncio.run(executed(program, ("1", "2"), ProcessRuns()))
    assert found == [Case("1", "2"), Case("2", "3")]


PROPOSAL = Proposal("def f(x):\n    return x + 1", "x", ("1",), "x + 1", 1, "statement")


def test_cases_that_make_no_task_are_refused_by_their_reason():
    several = PROPOSAL._replace(expression="")
    tagged = PROPOSAL._replace(program="def f(x):\n    return '</code>'")
    found = [Case(str(n), str(n + 1)) for n in range(6)]
    for proposal, cases, asked, reason in (
        (PROPOSAL, [Case("1", "1")], "output", "output_is_input"),
        (PROPOSAL, [Case(str(n), "0") for n in range(1, 7)], "program", "outputs_repeat"),
        (several, found, "program", "no_single_expression"),
        (tagged, [Case("1", "'</code>'")], "output", "writes_a_tag"),
    ):
        assert triple_task(proposal, cases, asked) == reason
    few = ProposedProgram(program="def f(x): return x", inputs=("1", " 1 ", "1"))
    assert draft_of(few, "program") == "too_few_inputs"
    assert draft_of(few, "input").proposal.inputs == ("1",)


def test_a_model_proposes_over_http_and_a_sandbox_decides():
    good = {"program": "def f(x):\n  return [x, x * 2]", "inputs": ["1", "2", "3", "4", "5", "6"]}
    bad = {"program": "import os\ndef f(x): return os.getpid()", "inputs": ["1"]}
    answers = [json.dumps({"programs": [good, bad]}), "I would rather not."]
    one = order(count=8)
    with running_double() as double:
        double.script = [Scripted(completion(answer)) for answer in answers]
        endpoint = EndpointConfig(url=double.url, model="m", attempts=1, asks=1, concurrency=1)
        drafts = TeacherDrafts(("output",), endpoint)(one)
    assert list(drafts)[1:] == ["forbidden_module", "answer_broken_json"]
    found = tasks_from(drafts, asyncio.run(all_executed(drafts, ProcessRuns())), one)
    assert [task.verifier.gold for task in found.tasks] == [("[1, 2]",)]
    assert found.refused == {"forbidden_module": 1, "answer_broken_json": 1}


def test_hostile_programs_are_refused_or_become_drafts_and_never_crash():
    valid = {"programs": [{"program": "def f(x):\n  return x", "inputs": ["1", "2, 3", "'a'"]}]}
    rng = random.Random(0)
    for _ in range(3000):
        body = json.dumps(completion(content_of(mutated(valid, rng), rng))).encode()
        answer = parsed_answer(body, ProposedPrograms)
        if isinstance(answer, ModelRefusal):
            continue
        for one in answer.programs:
            assert isinstance(draft_of(one, rng.choice(ASKED)), str | TaskDraft)

"""Triples of program, input and output: screened, executed twice, told, apart from held-out."""

import ast
import asyncio
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
    """Runs the chains of these tests without starting a Python each: a reader of its own."""

    async def run(self, code):
        nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
        texts = [node.value for node in nodes if isinstance(node.value, str)]
        program = next(text for text in texts if text.startswith("def f"))
        lines = [line.strip() for line in program.splitlines()[1:-1]]
        outputs = []
        for text in texts:
            if not (argument := re.fullmatch(r"\((-?\d+),\)", text)):
                continue
            x = int(argument[1])
            for line in lines:
                operator, numbers = line.split(" ", 2)[1:]
                total = 1
                for number in numbers.split(" * "):
                    total *= int(number)
                x = {"+=": x + total, "-=": x - total, "*=": x * total, "//=": x // total}[operator]
            outputs.append(f"{x}\n")
        return ended("".join(outputs).encode())

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
    assert {task.environment for task in tasks} == {"python_math"}
    assert {task.metadata.split for task in tasks} == {"train"}


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


def test_only_what_the_profile_asks_for_is_left_out():
    tasks = posed(("input",), count=20).tasks
    assert {task.extra["kind"] for task in tasks} == {"abduction"}


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("def f(x):\n  return x +", "not_python"),
        ("def f(x):\n  return '\0'", "not_python"),
        ("(" * 700 + ")" * 700, "not_python"),
        ("def f(x): return x" + " " * 2000, "program_too_long"),
        ("def g(x): return x", "defines_no_f"),
        ("def f(x): return x\ndef f(x): return 2", "defines_no_f"),
        ("def f(): return 1", "arguments_of_another_shape"),
        ("def f(x=1): return x", "arguments_of_another_shape"),
        ("def f(*x): return x", "arguments_of_another_shape"),
        ("@str\ndef f(x): return x", "arguments_of_another_shape"),
        ("def f(x): return x\nf(1)", "does_more_than_define"),
        ("def f(x): return x\nwhile True: pass", "does_more_than_define"),
        ("import os\ndef f(x): return x", "forbidden_module"),
        ("def f(x):\n  import random\n  return x", "forbidden_module"),
        ("from time import time\ndef f(x): return time()", "forbidden_module"),
        ("from . import x\ndef f(x): return x", "forbidden_module"),
        ("import os.path\ndef f(x): return x", "forbidden_module"),
        ("def f(x): return open(x)", "forbidden_name"),
        ("def f(x): return eval(x)", "forbidden_name"),
        ("def f(x): return id(x)", "forbidden_name"),
        ("def f(x): return ().__class__", "forbidden_name"),
        ("def f(x): return __import__('os')", "forbidden_name"),
        ("import typing\ndef f(x): return typing.sys.modules", "forbidden_name"),
        ("from typing import sys as s\ndef f(x): return s", "forbidden_name"),
        ("from operator import attrgetter as g\ndef f(x): return g('a')(x)", "forbidden_name"),
        ("n = [0]\ndef f(x):\n  global n\n  return n", "keeps_state"),
    ],
)
def test_programs_that_must_not_run_are_refused_unread(program, fault):
    assert screened(program) == fault


def test_a_program_is_told_in_one_spelling():
    text = (
        'import math\n\ndef f(a, b):\n    """Says it all: 7."""\n    # no\n    return math.gcd(a,b)'
    )
    assert screened(text) == Screened(
        "import math\n\ndef f(a, b):\n    return math.gcd(a, b)", "a, b", "", 1
    )
    assert screened("def f(x): return x+1").expression == "x + 1"
    assert screened("def f(x):\n  '''only words'''").program == "def f(x):\n    pass"


@given(st.text(max_size=200))
@settings(max_examples=300)
def test_no_text_breaks_the_screening(text):
    assert isinstance(screened(text), str | Screened)
    assert isinstance(screened(f"def f(x):\n    return {text}"), str | Screened)


def cases_of(first, *fresh, inputs=("1", "2")):
    """Cases of a program whose last result is that of all further interpreters too."""
    results = [first, *fresh, *fresh[-1:] * FRESH_RUNS]
    return asyncio.run(executed("def f(x): ...", inputs, ScriptedRuns(*results)))


@pytest.mark.parametrize(
    ("results", "fault"),
    [
        ([ended(b"1\n2\n"), ended(b"1\n3\n")], "not_deterministic"),
        ([ended(b"1\n2\n"), ended(b"", status=1)], "program_fails"),
        ([ended(b"1\n2\n", status=1)] * 2, "program_fails"),
        ([ended(b"1\n", killed_by="wall_time")] * 2, "program_fails"),
        ([ended(b"1\n2\n3\n")] * 2, "prints_besides"),
        ([ended(b"")] * 2, "prints_besides"),
        ([ended(b"1\n<object at 0x7f>\n")] * 2, "output_no_plain_value"),
        ([ended(b"1\n{1, 2}\n")] * 2, "output_no_plain_value"),
        ([ended(b"1\n[{3}]\n")] * 2, "output_no_plain_value"),
        ([ended(b"1\nnan\n")] * 2, "output_no_plain_value"),
        ([ended(b"1\n" + b"9" * 200 + b"\n")] * 2, "output_no_plain_value"),
        ([ended(b"1\n" + b"(" * 100 + b")" * 100 + b"\n")] * 2, "output_no_plain_value"),
        ([ended(b"1\n\xff\xfe\n")] * 2, "output_no_plain_value"),
        ([SandboxRefused("no")], "program_refused"),
        ([EnvironmentLostError("gone")], "environment_lost"),
        ([ProgramBrokeSandboxError("gone")], "program_broke_sandbox"),
        ([ended(b"1\n2\n")] * FRESH_RUNS + [ended(b"2\n1\n")], "not_deterministic"),
    ],
)
def test_what_a_sandbox_says_is_not_taken_for_granted(results, fault):
    assert cases_of(*results) == fault


def test_a_program_is_tried_in_interpreters_of_their_own():
    runs = ScriptedRuns(*[ended(b"1\n2\n")] * (1 + FRESH_RUNS))
    asyncio.run(executed("def f(x): ...", ("1", "2"), runs))
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


def test_both_runs_agree_on_plain_values():
    text = b"[1, ('a', None)]\n{'k': -2.5}\n"
    assert cases_of(ended(text), ended(text)) == [
        Case("1", "[1, ('a', None)]"),
        Case("2", "{'k': -2.5}"),
    ]


PROPOSAL = Proposal("def f(x):\n    return x + 1", "x", ("1",), "x + 1", 1, "statement")


def test_cases_that_make_no_task_are_refused_by_their_reason():
    assert triple_task(PROPOSAL, [Case("1", "1")], "output") == "output_is_input"
    repeated = [Case(str(n), "0") for n in range(1, 7)]
    assert triple_task(PROPOSAL, repeated, "program") == "outputs_repeat"
    several = PROPOSAL._replace(expression="")
    found = [Case(str(n), str(n + 1)) for n in range(6)]
    assert triple_task(several, found, "program") == "no_single_expression"
    tagged = PROPOSAL._replace(program="def f(x):\n    return '</code>'")
    assert triple_task(tagged, [Case("1", "'</code>'")], "output") == "writes_a_tag"


def proposed(program="def f(x):\n  return x * 2", inputs=("1", "2", "3", "4", "5", "6")):
    return ProposedProgram(program=program, inputs=tuple(inputs))


def test_a_models_program_becomes_a_draft_with_distinct_inputs():
    draft = draft_of(proposed(inputs=("1", " 1 ", "2", "3")), "input")
    assert draft.proposal.inputs == ("1",)
    assert draft.proposal.kind == "statement"
    assert draft_of(proposed(inputs=("1", "1", "1")), "program") == "too_few_inputs"
    assert draft_of(proposed("import os\ndef f(x): return 1"), "input") == "forbidden_module"


def test_a_model_proposes_over_http_and_a_sandbox_decides():
    good = {"program": "def f(x):\n  return [x, x * 2]", "inputs": ["1", "2", "3", "4", "5", "6"]}
    bad = {"program": "import os\ndef f(x): return os.getpid()", "inputs": ["1"]}
    with running_double() as double:
        double.script = [
            Scripted(completion(json.dumps({"programs": [good, bad]}))),
            Scripted(completion("I would rather not.")),
        ]
        endpoint = EndpointConfig(url=double.url, model="m", attempts=1, asks=1, concurrency=1)
        one = order(count=8)
        drafts = TeacherDrafts(("output",), endpoint)(one)
    assert [draft if isinstance(draft, str) else "draft" for draft in drafts] == [
        "draft",
        "forbidden_module",
        "answer_broken_json",
    ]
    results = asyncio.run(all_executed(drafts, ProcessRuns()))
    found = tasks_from(drafts, results, one)
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

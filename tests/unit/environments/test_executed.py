"""Answers that are proven by execution, over runs in processes of their own."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.records import FinalAnswer
from espalier.sandbox import SandboxRefused
from espalier_environments.python_math.execution import (
    MAX_ANSWER_CHARACTERS,
    Case,
    case_arguments,
    is_proven,
)
from tests.factories.python_math import ProcessRuns, ScriptedRuns, ended
from tests.factories.records import make_task

from .test_python_math import environment

PROGRAM = "def f(x):\n    x += 14\n    x *= 3\n    return x"


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
PAIRS = task("output", [Case("3", "{'a': 1, 'b': [2]}")], "{'a': 1, 'b': [2]}")
TWO = task("input", [Case("3, 4", "7")], "3, 4", program="def f(a, b):\n    return a + b")


class Seen(ProcessRuns):
    """Keeps the scripts that it runs."""

    def __init__(self):
        self.scripts = []

    async def run(self, code):
        self.scripts.append(code)
        return await super().run(code)


def proven(one, answer, runs=None):
    return asyncio.run(is_proven(one, answer, runs or ProcessRuns()))


@pytest.mark.parametrize("one", [DEDUCTION, ABDUCTION, INDUCTION, EVEN, LISTS, TWO])
def test_every_gold_answer_is_accepted(one):
    assert proven(one, one.verifier.gold[0])


@pytest.mark.parametrize(
    ("one", "answers"),
    [
        (DEDUCTION, [" 153 "]),
        (LISTS, ['[1,"a"]']),
        (PAIRS, ["{'b': [2], 'a': 1}"]),
        (EVEN, ["-6"]),
        (TWO, ["7,0"]),
        (INDUCTION, ["3 * x + 42", "lambda y: 42 + y + y + y", "f = lambda x: sum([x] * 3) + 42"]),
    ],
)
def test_other_right_answers_are_accepted(one, answers):
    assert all(proven(one, answer) for answer in answers)


@pytest.mark.parametrize(
    ("one", "answers"),
    [
        (DEDUCTION, ["154", "153.0", "'153'", "51 * 3", "", "x", "True", "f'{153}'"]),
        (DEDUCTION, ["(" * 400 + "153" + ")" * 400, "[" * 499 + "]" * 499, "-" * 999]),
        (LISTS, ["[True, 'a']", "[1.0, 'a']", "(1, 'a')", "[1, 'a', *[]]"]),
        (PAIRS, ["{'a': True, 'b': [2]}", "{'a': 1}", "{'a': 1, 'b': [2], 'c': 3}"]),
        (ABDUCTION, ["38", "30 + 7", "37, 1", "37) or (38", "*[37]", "x=37", "37 #"]),
        (EVEN, ["7"]),
        (INDUCTION, ["45 if x == 1 else 0", "print(45) or print(48)", "lambda: 45", "x +"]),
        (INDUCTION, ["(x + 14) * 3 + print('45')", "__import__('os')._exit(0)"]),
    ],
)
def test_near_misses_and_tricks_are_refused(one, answers):
    assert [answer for answer in answers if proven(one, answer)] == []


HIDDEN = [Case("1000", "3042"), Case("2000", "6042")]
UNSEEN = task("program", HIDDEN, "x * 3 + 42", parameters="x")
"""The policy was shown f(0) is 42 and f(3) is 51; it finds 1000 and 2000 only when it runs."""

OS, SYS, BUILTINS = "__import__('os')", "__import__('sys')", "__import__('builtins')"
LEAVES = f"{OS}._exit(0)"
FRAMES = f"[{SYS}._getframe(n) for n in range(3)]"
ATTACKS = {
    "prints what it was shown, and leaves": f"({OS}.write(1, b'42\\n51\\n'), {LEAVES})",
    "prints through print, and leaves": f"(print(42), print(51), {LEAVES})",
    "leaves without a word": LEAVES,
    "ends by SystemExit": f"(print(42), {SYS}.exit(0))",
    "prints a verdict": "print(True) or True",
    "prints every line there could be": "[print(n) for n in range(7000)] and x",
    "replaces repr": f"{BUILTINS}.__dict__.update(repr=lambda _: '3042') or 42",
    "replaces print": f"{BUILTINS}.__dict__.update(print=lambda *_: None) or 42",
    "replaces literal_eval": (
        "__import__('ast').__dict__.update(literal_eval=lambda _: (1,)) or 42"
    ),
    "replaces standard output": (f"setattr({SYS}, 'stdout', open('/dev/null', 'w')) or x"),
    "is equal to everything": (
        "type('T', (int,), {'__eq__': lambda *_: True, '__hash__': lambda _: 0})(42)"
    ),
    "writes itself as what it was shown": "type('T', (), {'__repr__': lambda _: '42'})()",
    "shows the script's own frames": f"print(*[f.f_code.co_consts for f in {FRAMES}]) or x",
    "shows the names of its callers": f"print(*[f.f_locals for f in {FRAMES}]) or x",
    "shows all texts in memory": (
        "print(*[o for o in __import__('gc').get_objects() if isinstance(o, (str, list, tuple))"
        " and '042' in str(o)[:99]]) or x"
    ),
    "shows the command line and the variables": (
        f"print(open('/proc/self/cmdline').read(), dict({OS}.environ)) or x"
    ),
    "prints at the end": "__import__('atexit').register(print, 6042) and x",
    "forks and lets both print": f"{OS}.fork() or x",
    "raises what is caught": "(_ for _ in ()).throw(StopIteration('3042'))",
    "defines the script's names": "globals().update(write=len, show=len, f=len) or 42",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_answer_is_proven_by_what_it_prints(attack):
    answer = ATTACKS[attack]
    assert len(answer) <= MAX_ANSWER_CHARACTERS
    assert not proven(UNSEEN, answer)


def test_what_would_prove_an_answer_is_not_in_the_sandbox():
    """Positive control: an answer that knew the outputs could print them."""
    runs = Seen()
    assert proven(UNSEEN, "x * 3 + 42", runs)
    assert not [text for text in runs.scripts if "3042" in text or "6042" in text]
    assert proven(UNSEEN, f"({OS}.write(1, b'3042\\n6042\\n'), {LEAVES})")


def test_an_answer_that_is_data_never_becomes_code():
    runs = Seen()
    for answer in ("37,)))\n__import__('os').abort()\n#", "'''\n__import__('os').abort()"):
        for one in (DEDUCTION, ABDUCTION, INDUCTION):
            assert not proven(one, answer, runs)
    assert not [text for text in runs.scripts if "\n__import__" in text]


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


@pytest.mark.parametrize(("answer", "outcome"), [("37", 1.0), ("38", -1.0)])
def test_an_episode_is_scored_by_execution(answer, outcome):
    episode = environment(ScriptedRuns(), ABDUCTION, checks=ProcessRuns())

    async def played():
        await episode.step(FinalAnswer(f"\\boxed{{{answer}}}"))
        return await episode.score()

    assert asyncio.run(played())["outcome"] == outcome

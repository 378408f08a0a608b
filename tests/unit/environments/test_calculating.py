"""Programs that can only calculate: which those are, and that each runs once."""

import asyncio
import contextlib
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from espalier.sandbox import SandboxLost
from espalier_environments.python_math.calculating import (
    CalculatingRuns,
    Calculations,
    only_calculates,
)
from tests.factories.python_math import ended

SUM = "x = 37\nx += 4 * 6\nprint(x)"
PRINTED = ended(b"61\n")


class Sandboxes:
    """A pool whose one sandbox answers as it is told, after a moment."""

    def __init__(self, *answers):
        self.answers = [*answers, PRINTED]
        self.ran = []
        self.running = self.most_at_once = 0

    async def run(self, work):
        return await work

    @asynccontextmanager
    async def claim(self, *, judging=False):
        assert not judging
        yield self

    async def run_python(self, code, *, timeout_s):
        self.ran.append(code)
        answer = self.answers[min(len(self.ran), len(self.answers)) - 1]
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        await asyncio.sleep(0.01)
        self.running -= 1
        if isinstance(answer, Exception):
            raise answer
        return answer


def episodes(sandboxes, *programs):
    known = Calculations()

    async def play():
        runs = [CalculatingRuns(sandboxes, 5.0, known) for _ in programs]
        together = zip(runs, programs, strict=True)
        return await asyncio.gather(
            *(one.run(code) for one, code in together), return_exceptions=True
        )

    return asyncio.run(play()), known


@pytest.mark.parametrize(
    "code", [SUM, "", "x = 7 // 2\nprint(max(x, 2.5), -x ** 2 % 5)", "print(y)", "print(1 / 0)"]
)
def test_arithmetic_and_a_few_functions_only_calculate(code):
    assert only_calculates(code)


@pytest.mark.parametrize(
    "code",
    [
        "import random\nprint(random.random())", "print(id(1))", "abs = id\nprint(abs(1))",
        "print(x.__class__)", "print(1 .real)", "print(1.real)", "print(__builtins__)",
        "f = lambda: 1\nprint(f)", "def f():\n  return 1", "(id)(1)", "print((id)(1))",
        "print(1or id(1))", "print(1or 2)", "x = print\n(0)\nprint(x)", "print('a')",
        "print({1, 2})", "print([1])", "while 1:\n  x = 1", "x = 1; print(x)",
        "print(\uff49d(1))", "exec(1)", "x = 1 " + "+ 1 " * 1000,
    ],
)  # fmt: skip
def test_whatever_may_differ_the_next_time_does_not(code):
    assert not only_calculates(code)


def test_episodes_that_write_the_same_calculation_run_it_once():
    sandboxes = Sandboxes()
    clock = "import time\nprint(time.time())"
    results, known = episodes(sandboxes, *[SUM] * 8, "print(2)", clock, clock)
    assert results == [PRINTED] * 11
    assert sorted(sandboxes.ran) == [clock, clock, "print(2)", SUM]
    assert not known.locks


NOT_FINAL = {
    "wall time": ended(b"61\n", killed_by="wall_time"),
    "memory": ended(b"61\n", b"Traceback ...\nMemoryError\n", status=1),
    "never ran": ended(b"61\n", status=126),
    "cut": replace(PRINTED, truncated=True),
    "lost": SandboxLost("gone", by_program=False),
}


@pytest.mark.parametrize("answer", NOT_FINAL.values(), ids=NOT_FINAL)
def test_what_a_limit_or_loss_touched_runs_again_at_once(answer):
    sandboxes = Sandboxes(answer)
    (first, *others), known = episodes(sandboxes, *[SUM] * 8)
    assert first != PRINTED
    assert others == [PRINTED] * 7
    assert sandboxes.ran == [SUM] * 8
    assert sandboxes.most_at_once == 7
    assert SUM not in known.results


def test_an_episode_that_is_given_up_lets_the_others_run():
    sandboxes, known = Sandboxes(), Calculations()

    async def play():
        first = asyncio.create_task(CalculatingRuns(sandboxes, 5.0, known).run(SUM))
        second = asyncio.create_task(CalculatingRuns(sandboxes, 5.0, known).run(SUM))
        await asyncio.sleep(0)
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        return await second

    assert asyncio.run(play()) == PRINTED
    assert sandboxes.ran == [SUM, SUM]


def test_printed_bytes_bound_what_is_remembered():
    long = ended(bytes(1 << 20))
    programs = [f"print({n})" for n in range(40)]
    _, known = episodes(Sandboxes(*[long] * 40), *programs)
    assert known.results.currsize <= 16 << 20
    assert len(known.results) < len(programs)

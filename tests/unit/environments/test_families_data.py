"""What the two families make of knowledge, programs and answers: shares, bounds and groups."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from espalier.config import Profile, SplitsConfig
from espalier.environments import EnvironmentLostError
from espalier.environments.funnel import Funnel
from espalier.environments.held_sandbox import HeldSandbox
from espalier.environments.interpreter import SeparateRuns, SessionRuns, shortened
from espalier.sandbox import SandboxLost, SandboxRefused, SandboxUnavailable
from espalier_environments.python_math import PythonMath
from espalier_environments.python_math.config import PythonMathConfig
from espalier_environments.python_math.execution import is_proven
from espalier_environments.python_math.problems import deal_problems, save_problems
from espalier_environments.python_math.questions import (
    make_math_questions,
)
from espalier_search.search_qa import SearchQA
from tests.factories.python_math import TASK, ScriptedRuns, ended
from tests.factories.records import make_task


def maths(**sections):
    return PythonMath(Profile.model_validate({"environment": {"name": "python_math"}} | sections))


def problems_file(path, count, *, notes=1):
    rows = [
        {
            "question": f"What is {n} plus one, the number {n} being given?",
            "answer": "".join(f"<<{n}+1={n + 1}>> " for _ in range(notes)) + f"\n#### {n + 1}",
        }
        for n in range(count)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def dealt(tmp_path, count, **splits):
    config = PythonMathConfig(problems=problems_file(tmp_path / "own.jsonl", count))
    return deal_problems(config, SplitsConfig(**splits))


def test_problems_are_dealt_by_the_shares_of_the_splits(tmp_path):
    found = dealt(tmp_path, 400, heldout_share=0.5, dev_share=0.25)
    counts = {s: sum(d.split == s for d in found) for s in ("train", "dev", "heldout")}
    assert sum(counts.values()) == 400
    assert abs(counts["heldout"] - 200) < 40
    assert abs(counts["dev"] - 100) < 35
    more = dealt(tmp_path, 400, heldout_share=0.6, dev_share=0.15)
    assert {d.problem for d in found if d.split == "heldout"} <= {
        d.problem for d in more if d.split == "heldout"
    }


def asked(tmp_path, **synthesis):
    profile = maths(
        synthesis=synthesis | {"trajectories": 2},
        curriculum={"candidates": 2},
        training={"dev_questions": 2},
        warm_start={"dev_questions": 2},
    ).profile
    funnel = Funnel()
    return make_math_questions(profile, tmp_path, funnel), funnel


def test_own_problems_are_asked_up_to_the_number_asked_for(tmp_path):
    save_problems(dealt(tmp_path, 40, heldout_share=0.4, dev_share=0.3), tmp_path)
    few = {"train_tasks": 5, "dev_tasks": 5, "heldout_tasks": 5}
    questions, funnel = asked(tmp_path, **few)
    assert {split: len(found) for split, found in questions.items()} == {
        "train": 5, "dev": 5, "heldout": 5,
    }  # fmt: skip
    unused = sum(funnel.counts(f"{s}.own_questions")["more_than_asked_for"] for s in questions)
    assert unused == 40 - 15
    assert asked(tmp_path, **few)[0] == questions
    question = questions["train"][0]
    assert question.task.metadata.source == "own"
    assert question.program.startswith("print(")
    assert question.task.environment == "python_math"
    everything, funnel = asked(tmp_path, train_tasks=500, dev_tasks=500, heldout_tasks=500)
    assert sum(len(found) for found in everything.values()) == 40
    assert all(not funnel.counts(f"{split}.own_questions") for split in everything)


@pytest.mark.parametrize(("notes", "difficulty"), [(0, 1), (1, 1), (3, 3)])
def test_a_problem_is_as_hard_as_its_notes_are_many(tmp_path, notes, difficulty):
    config = PythonMathConfig(problems=problems_file(tmp_path / "own.jsonl", 40, notes=notes))
    save_problems(deal_problems(config, SplitsConfig()), tmp_path)
    question = make_math_questions(maths().profile, tmp_path, Funnel())["train"][0]
    assert question.task.metadata.difficulty == question.task.extra["hops"] == difficulty
    if not notes:
        assert question.program == f"print({question.task.verifier.gold[0]})"


@pytest.mark.parametrize(
    ("text", "limit", "kept"),
    [
        ("x" * 16, 16, "x" * 16),
        ("a" * 8 + "b" * 9, 16, "a" * 5 + " ... " + "b" * 6),
        ("a" * 8 + "b" * 10, 17, "a" * 6 + " ... " + "b" * 6),
    ],
)
def test_an_observation_is_cut_in_its_middle(text, limit, kept):
    assert shortened(text, limit) == kept


class Sandboxes:
    """A pool on the loop of the caller; its sandboxes give or raise what is listed."""

    def __init__(self, *results):
        self._results = list(results)
        self.claims, self.judged, self.returned, self.posted = 0, 0, [], []
        self.pool = self

    async def run(self, work):
        return await work

    def post(self, work):
        self.posted.append(asyncio.ensure_future(work))

    @asynccontextmanager
    async def claim(self, *, judging=False):
        self.claims += 1
        self.judged += judging
        try:
            yield self
        except BaseException as error:
            self.returned.append(type(error).__name__)
            raise
        else:
            self.returned.append("well")

    async def run_python(self, code, *, timeout_s):
        return self._next(code, timeout_s)

    async def python(self, code, *, timeout_s):
        return self._next(code, timeout_s)

    def _next(self, code, timeout_s):
        assert timeout_s == 5.0
        result = self._results.pop(0)
        if isinstance(result, BaseException):
            raise result
        return f"{code}:{result}"


@pytest.mark.parametrize("judging", [False, True])
def test_each_program_borrows_a_sandbox_of_its_own(judging):
    sandboxes = Sandboxes(1, 2)
    runs = SeparateRuns(sandboxes, 5.0, judging=judging)
    assert [asyncio.run(runs.run(code)) for code in "ab"] == ["a:1", "b:2"]
    runs.end()
    assert (sandboxes.claims, sandboxes.returned) == (2, ["well", "well"])
    assert sandboxes.judged == 2 * judging


def test_a_session_keeps_its_sandbox_until_the_episode_ends():
    sandboxes = Sandboxes(1, SandboxRefused("too long"), 3)
    runs = SessionRuns(sandboxes, 5.0)

    async def played():
        runs.end()
        assert sandboxes.posted == []
        assert await runs.run("a") == "a:1"
        with pytest.raises(SandboxRefused):
            await runs.run("b")
        assert await runs.run("c") == "c:3"
        assert (sandboxes.claims, sandboxes.returned) == (1, [])
        runs.end()
        runs.end()
        await asyncio.gather(*sandboxes.posted)

    asyncio.run(played())
    assert (len(sandboxes.posted), sandboxes.returned) == (1, ["well"])


def test_a_session_that_lost_its_sandbox_borrows_another():
    sandboxes = Sandboxes(SandboxLost("gone"), 2)
    runs = SessionRuns(sandboxes, 5.0)

    async def played():
        with pytest.raises(EnvironmentLostError, match="gone"):
            await runs.run("a")
        assert await runs.run("b") == "b:2"
        assert (sandboxes.claims, sandboxes.returned) == (2, ["SandboxLost"])

    asyncio.run(played())


def test_a_sandbox_that_cannot_be_prepared_is_given_back():
    sandboxes = Sandboxes(SandboxRefused("no place"), 2, 3)

    def asked(sandbox):
        return sandbox.python("b", timeout_s=5.0)

    async def played():
        held = HeldSandbox(sandboxes, lambda sandbox: sandbox.python("a", timeout_s=5.0))
        with pytest.raises(SandboxRefused):
            await held.use(asked, keep_at=(SandboxRefused,))
        assert (held.is_held, sandboxes.returned) == (False, ["SandboxRefused"])
        assert await held.use(asked) == "b:3", "the next one was prepared"
        assert held.is_held

    asyncio.run(played())


@pytest.mark.parametrize("error", [SandboxRefused("x"), SandboxUnavailable("x")])
def test_what_concerns_every_episode_is_no_loss_of_one(error):
    with pytest.raises(type(error)):
        asyncio.run(SeparateRuns(Sandboxes(error), 5.0).run("a"))


@pytest.mark.parametrize(
    ("answer", "is_right"), [("1" * 1000, True), ("1" * 1001, False), (None, False)]
)
def test_an_answer_that_is_run_has_a_thousand_characters(answer, is_right):
    arguments = {"asked": "output", "cases": [["1", "1"]], "program": "def f(x): return x"}
    task = TASK.model_copy(update={"arguments": arguments})
    assert asyncio.run(is_proven(task, answer, ScriptedRuns(ended(b"True\n")))) is is_right


def test_a_search_is_answered_exactly():
    family = SearchQA(Profile())
    task = make_task(question="?", gold=("the Euro",))
    assert [family.verify(task, answer) for answer in ("euro", "yen", None)] == [1.0, 0.0, 0.0]
    assert family.answer_settings().keys() == {"search"}


def test_maths_are_judged_by_meaning():
    assert [maths().verify(TASK, answer) for answer in ("84.0", "85", None)] == [1.0, 0.0, 0.0]
    assert "sandbox" not in maths().answer_settings()["python"]

"""What the two families make of knowledge, programs and answers: shares, bounds and groups."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from espalier.config import Profile, SplitsConfig
from espalier.environments import EnvironmentLostError
from espalier.environments.funnel import Funnel
from espalier.environments.held_sandbox import HeldSandbox
from espalier.environments.interpreter import SeparateRuns, SessionRuns, shortened
from espalier.records import NullTracker
from espalier.records.knowledge import Document
from espalier.sandbox import SandboxLost, SandboxRefused, SandboxUnavailable
from espalier_environments.python_math import PythonMath
from espalier_environments.python_math.arithmetic import Calculation, Change, calculation_split
from espalier_environments.python_math.config import PythonMathConfig
from espalier_environments.python_math.execution import is_proven
from espalier_environments.python_math.problems import deal_problems, save_problems
from espalier_environments.python_math.questions import (
    make_math_questions,
)
from espalier_environments.python_math.scratch import ScratchWriter
from espalier_search.search_qa import SearchQA
from espalier_search.search_qa.reading_logs import BrowsingWriter, ClozeWriter
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


def asked(tmp_path, count, **synthesis):
    save_problems(dealt(tmp_path, count, heldout_share=0.4, dev_share=0.3), tmp_path)
    sizes = {"train_tasks": 5, "dev_tasks": 5, "heldout_tasks": 5} | synthesis
    profile = maths(
        synthesis=sizes | {"trajectories": 2},
        curriculum={"candidates": 2},
        training={"dev_questions": 2},
        warm_start={"dev_questions": 2},
    ).profile
    funnel = Funnel()
    return make_math_questions(profile, tmp_path, funnel), funnel


def test_own_problems_are_asked_up_to_the_number_asked_for(tmp_path):
    questions, funnel = asked(tmp_path, 40)
    assert {split: len(found) for split, found in questions.items()} == {
        "train": 5, "dev": 5, "heldout": 5,
    }  # fmt: skip
    unused = sum(funnel.counts(f"{s}.own_questions")["more_than_asked_for"] for s in questions)
    assert unused == 40 - 15
    again, _ = asked(tmp_path, 40)
    assert again == questions
    question = questions["train"][0]
    assert question.task.metadata.source == "own"
    assert question.task.metadata.difficulty == 1
    assert question.program.startswith("print(")
    assert question.task.environment == "python_math"


def test_own_problems_that_are_just_enough_leave_none_over(tmp_path):
    questions, funnel = asked(tmp_path, 40, train_tasks=500, dev_tasks=500, heldout_tasks=500)
    assert sum(len(found) for found in questions.values()) == 40
    assert all(not funnel.counts(f"{split}.own_questions") for split in questions)


def test_a_problem_without_notes_is_answered_by_its_answer(tmp_path):
    config = PythonMathConfig(problems=problems_file(tmp_path / "own.jsonl", 40, notes=0))
    save_problems(deal_problems(config, SplitsConfig()), tmp_path)
    found = make_math_questions(maths().profile, tmp_path, Funnel())
    question = found["train"][0]
    assert question.program == f"print({question.task.verifier.gold[0]})"
    assert (question.task.metadata.difficulty, question.task.extra["hops"]) == (1, 1)
    config = PythonMathConfig(problems=problems_file(tmp_path / "own.jsonl", 40, notes=3))
    save_problems(deal_problems(config, SplitsConfig()), tmp_path)
    found = make_math_questions(maths().profile, tmp_path, Funnel())
    assert found["train"][0].task.metadata.difficulty == 3


def test_stories_know_their_steps_and_answers(tmp_path):
    save_problems([], tmp_path)
    profile = maths(
        synthesis={"train_tasks": 8, "dev_tasks": 4, "heldout_tasks": 4, "trajectories": 2},
        curriculum={"candidates": 2},
        training={"dev_questions": 2},
        warm_start={"dev_questions": 2},
    ).profile
    questions = make_math_questions(profile, tmp_path, Funnel())
    assert [len(questions[split]) for split in ("train", "dev", "heldout")] == [8, 4, 4]
    for question in (q for found in questions.values() for q in found):
        steps = question.task.metadata.pattern.count(" > ") + 1
        assert question.task.metadata.difficulty == question.task.extra["hops"] == steps
        assert question.program.count("\n") == steps + 1
        assert question.task.question


def test_a_chain_belongs_to_a_split_by_its_digest():
    chains = [Calculation(n, (Change("add", (m,)),)) for n in range(2, 80) for m in range(n, 90)]
    counts = {
        s: sum(calculation_split(c) == s for c in chains) for s in ("train", "dev", "heldout")
    }
    shares = [counts[s] / len(chains) for s in ("train", "dev", "heldout")]
    assert shares == pytest.approx([0.6, 0.1, 0.3], abs=0.025)


def test_the_digits_of_invented_results_are_one_to_four():
    writer = ScratchWriter(("ada has coins 12 x3 .",))
    logs = [writer.write(random.Random(seed)) for seed in range(400)]
    assert {len(log.pieces[1]) for log in logs} == {1, 2, 3, 4}
    steps = [log.pieces[0].thought.count(" , ") for log in logs]
    assert [steps.count(n) / 400 for n in (1, 2, 3, 4)] == pytest.approx(
        [0.3, 0.3, 0.25, 0.15], abs=0.07
    )
    numbers = [int(word) for log in logs for word in log.prompt.split() if word.isdigit()]
    assert (min(numbers), max(numbers)) == (2, 99)
    assert {word for log in logs for word in log.prompt.split() if not word.isdigit()} == {
        "ada", "has", "coins", ".",
    }  # fmt: skip
    noise = [len(part.split()) for log in logs for part in _between_numbers(log.prompt)]
    assert (min(noise), max(noise)) == (1, 6)


def _between_numbers(prompt):
    return "".join("|" if w.isdigit() else f"{w} " for w in prompt.split()).split("|")


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


def test_each_program_borrows_a_sandbox_of_its_own():
    sandboxes = Sandboxes(1, 2)
    runs = SeparateRuns(sandboxes, 5.0)
    assert [asyncio.run(runs.run(code)) for code in "ab"] == ["a:1", "b:2"]
    runs.end()
    assert (sandboxes.claims, sandboxes.returned) == (2, ["well", "well"])
    assert sandboxes.judged == 0


def test_what_judges_asks_for_a_sandbox_for_judges():
    sandboxes = Sandboxes(1)
    assert asyncio.run(SeparateRuns(sandboxes, 5.0, judging=True).run("a")) == "a:1"
    assert sandboxes.judged == 1


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
    runs = ScriptedRuns(ended(b"True\n"))
    assert asyncio.run(is_proven(task, answer, runs)) is is_right
    failed = ScriptedRuns(ended(b"True\n", status=1))
    assert asyncio.run(is_proven(task, "1", failed)) is False


def test_maths_say_where_their_problems_come_from(tmp_path):
    for settings, said in (
        ({}, "Made by espalier.\n"),
        (
            {"problems": problems_file(tmp_path / "own.jsonl", 3)},
            "Word problems of own.jsonl.\n",
        ),
    ):
        draft = SimpleNamespace(path=tmp_path, rows={})
        family = maths(environment={"name": "python_math", **settings})
        family.ingest(draft, NullTracker())
        assert (tmp_path / "attribution.txt").read_text() == said
        assert draft.rows == {"problems": 3 if settings else 0}


@pytest.mark.parametrize(
    ("make", "groups"),
    [
        (maths, {"kind": "story", "steps": "3"}),
        (lambda: SearchQA(Profile()), {"kind": "story", "hops": "3"}),
    ],
)
def test_a_family_groups_tasks_for_the_report(make, groups):
    task = TASK.model_copy(
        update={
            "metadata": TASK.metadata.model_copy(update={"extra": {"kind": "story", "hops": 3}})
        }
    )
    family = make()
    assert family.report_groups(task) == groups
    bare = TASK.model_copy(update={"metadata": TASK.metadata.model_copy(update={"extra": {}})})
    assert list(family.report_groups(bare).values()) == ["", "1"]


def test_a_search_is_answered_exactly():
    family = SearchQA(Profile())
    task = make_task(question="?", gold=("the Euro",))
    assert (family.verify(task, "euro"), family.verify(task, "yen")) == (1.0, 0.0)
    assert family.verify(task, None) == 0.0
    assert family.answer_settings().keys() == {"search"}


def test_maths_are_judged_by_meaning():
    assert (maths().verify(TASK, "84.0"), maths().verify(TASK, "85")) == (1.0, 0.0)
    assert maths().verify(TASK, None) == 0.0
    assert "sandbox" not in maths().answer_settings()["python"]


def show_query(document, query):
    return f"{query} -> {' | '.join(document.lines)}"


def cloze_logs(line, share, count=300):
    documents = [Document("d", "Bakomi", (line, "only three words"), "train")]
    writer = ClozeWriter(documents, show_query, substitution_share=share)
    return [writer.write(random.Random(seed)) for seed in range(count)]


def test_a_gap_is_one_or_two_words_of_a_line():
    words = ["alpha", "bravo", "charlie", "delta"]
    expected = {" ".join(words[i : i + n]) for n in (1, 2) for i in range(5 - n)}
    logs = cloze_logs("alpha bravo charlie delta.", share=0.0)
    assert {log.pieces[-1].text for log in logs} == expected
    for log in logs:
        gap = log.pieces[-1].text
        assert sorted([*log.prompt.split(), *gap.split()]) == words
        assert log.pieces[1].endswith(f"-> {' '.join(words)} | only three words")


def test_a_cloze_query_has_eight_words_at_most():
    line = " ".join(f"word{chr(97 + n)}" for n in range(12))
    queries = [log.pieces[1].partition(" ->")[0] for log in cloze_logs(line, share=1.0)]
    assert {len(query.split()) for query in queries} == {8}
    answers = {log.pieces[-1].text for log in cloze_logs(line, share=1.0)}
    assert not any(answer in line for answer in answers)


def browsing_logs(share, count=400):
    documents = [
        Document("c1", "Lyon", ("country: France", "Known for its silk."), "train"),
        Document("c2", "France", ("capital: Lyon; Paris",), "train"),
        Document("c3", "Mute", ("It states nothing.",), "train"),
    ]
    kinds = {"c1": "city", "c2": "country", "c3": "city"}
    writer = BrowsingWriter(
        documents,
        kinds,
        {"country": "country", "capital": "city"},
        show_query,
        substitution_share=share,
    )
    return [writer.write(random.Random(seed)) for seed in range(count)]


def test_a_name_stands_among_up_to_five_labels_and_one():
    logs = [log.prompt.split() for log in browsing_logs(share=0.0)]
    places = [next(n for n, word in enumerate(words) if word.istitle()) for words in logs]
    behind = [len(words) - 1 - place for words, place in zip(logs, places, strict=True)]
    assert set(places) == {0, 1, 2, 3, 4, 5}
    assert set(behind) == {0, 1}
    assert {words[place] for words, place in zip(logs, places, strict=True)} == {"Lyon", "France"}


def test_a_walk_has_one_to_four_searches():
    logs = browsing_logs(share=0.0)
    searches = [len(log.pieces) // 2 for log in logs]
    assert [searches.count(n) / len(logs) for n in (1, 2, 3, 4)] == pytest.approx(
        [0.3, 0.3, 0.25, 0.15], abs=0.07
    )
    assert {log.pieces[-1].text for log in logs} == {"Lyon", "France"}


def test_names_are_replaced_in_the_share_that_is_asked():
    known = [
        sum("Lyon" in log.prompt or "France" in log.prompt for log in browsing_logs(share)) / 400
        for share in (0.0, 0.5)
    ]
    assert known[0] == 1.0
    assert 0.4 < known[1] < 0.65  # of two names some make one of them again

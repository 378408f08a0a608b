"""Made-up functions: disjoint splits, and demonstrations and verdicts of their requests."""

import asyncio
import json
import random
from pathlib import Path

from espalier.config import Profile
from espalier.environments import family_of
from espalier.environments.funnel import Funnel
from espalier.environments.mixins import PlainQuestion
from espalier.environments.teaching import play_script
from espalier.records import FinalAnswer, Malformed, ToolCalls
from espalier.records.trajectory import FinishReason, Trajectory

NOWHERE = Path("unused")
KINDS = {"single", "multiple", "parallel", "parallel_multiple", "none"}


def functions(**settings):
    environment = {"name": "function_calling", **settings}
    return family_of(Profile.model_validate({"environment": environment}))


def played(family, task, *actions):
    with family.environments(NOWHERE) as over:
        return asyncio.run(play_script(over("full"), task, (action for action in actions)))


def of_kind(kind, **settings):
    family = functions(apis={"kinds": [kind]}, **settings)
    return family, family.tasks("train", 20)


def calls_of(family, task):
    """The gold calls, as a policy writes them."""
    return next(family.demonstrate(task)).calls


def test_demonstrations_of_every_kind_are_right():
    family = functions()
    tasks = family.tasks("train", 100)
    assert {task.extra["kind"] for task in tasks} == KINDS
    with family.teacher(NOWHERE, Funnel()) as demonstrate:
        for task in tasks:
            assert isinstance(demonstrate(PlainQuestion(task), ""), Trajectory), task.question
    assert functions().tasks("train", 100) == tasks
    assert functions(apis={"seed": 1}).tasks("train", 100) != tasks


def test_a_function_is_in_one_split():
    family = functions()
    names = []
    for split in ("train", "dev", "heldout"):
        tasks = family.tasks(split, 600)
        assert len({task.question for task in tasks}) == 600
        names.append({spec.name for task in tasks for spec in family.specs_of(task)})
    assert sum(map(len, names)) == len(set.union(*names))
    material = family.reading_material(NOWHERE, [])
    for seed in range(200):
        assert not names[-1].intersection(material.write(random.Random(seed)).prompt.split())


def test_a_request_is_answered_by_one_message_of_calls():
    family, tasks = of_kind("parallel_multiple")
    for task in tasks:
        first, second = calls_of(family, task)
        for calls in ((first,), (first, first), (first, second, second)):
            assert not played(family, task, ToolCalls(calls)).is_right
        swapped = played(family, task, ToolCalls((second, first)))
        assert (swapped.is_right, swapped.finish_reason) == (True, FinishReason.ANSWERED)
        assert family.verify(task, json.dumps([one.model_dump() for one in (first, second)])) == 1
        assert [family.verify(task, written) for written in ("[]", "x", None)] == [0, 0, 0]


def test_where_nothing_fits_any_call_is_wrong():
    family, tasks = of_kind("none")
    for task in tasks:
        assert played(family, task, FinalAnswer("no such function")).is_right
        for name in (family.specs_of(task)[0].name, "unknown"):
            assert not played(family, task, ToolCalls.one(name, {})).is_right
    broken = played(family, tasks[0], Malformed("no JSON", "{"))
    assert (broken.is_right, broken.finish_reason) == (False, FinishReason.PARSE_ERROR)


def test_partial_credit_stays_below_what_is_right():
    family, tasks = of_kind("parallel_multiple", credit="toolrl")
    low, high = family.outcome_span(family.settings)
    for task in tasks:
        first, second = calls_of(family, task)
        right = played(family, task, ToolCalls((second, first)))
        half = played(family, task, ToolCalls((first,)))
        none = played(family, task, FinalAnswer("nothing"))
        outcomes = [one.reward["outcome"] for one in (none, half, right)]
        assert low <= outcomes[0] < outcomes[1] < 0 < outcomes[2] <= high
        assert right.is_right
        assert not half.is_right

"""Made-up functions: disjoint splits, and demonstrations and verdicts of their requests."""

import asyncio
import json
import random
from pathlib import Path

import pytest
from pydantic import ValidationError

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
    seen = set()
    with family.teacher(NOWHERE, Funnel()) as demonstrate:
        for task in family.tasks("train", 100):
            assert isinstance(demonstrate(PlainQuestion(task), ""), Trajectory), task.question
            seen.add(task.extra["kind"])
    assert seen == KINDS


def test_a_function_is_in_one_split():
    family = functions()
    names = []
    for split in ("train", "dev", "heldout"):
        tasks = family.tasks(split, 600)
        assert len({task.question for task in tasks}) == 600
        names.append({spec.name for task in tasks for spec in family.specs_of(task)})
    assert sum(map(len, names)) == len(set.union(*names))


def test_requests_are_the_same_under_the_same_seed():
    assert functions().tasks("dev", 40) == functions().tasks("dev", 40)
    assert functions().tasks("dev", 40) != functions(apis={"seed": 1}).tasks("dev", 40)


def test_a_request_is_answered_by_one_message_of_calls():
    family, tasks = of_kind("parallel_multiple")
    for task in tasks:
        first, second = calls_of(family, task)
        swapped = played(family, task, ToolCalls((second, first)))
        assert (swapped.is_right, swapped.finish_reason) == (True, FinishReason.ANSWERED)
        assert not (played(family, task, ToolCalls((first,)))).is_right
        assert not (played(family, task, ToolCalls((first, first)))).is_right
        assert not (played(family, task, ToolCalls((first, second, second)))).is_right


def test_where_nothing_fits_any_call_is_wrong():
    family, tasks = of_kind("none")
    for task in tasks:
        assert played(family, task, FinalAnswer("no such function")).is_right
        name = family.specs_of(task)[0].name
        assert not (played(family, task, ToolCalls.one(name, {}))).is_right
        assert not (played(family, task, ToolCalls.one("unknown", {}))).is_right


def test_a_malformed_message_is_no_answer():
    family, tasks = of_kind("none")
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


def test_written_calls_are_verified_as_played_ones():
    family, tasks = of_kind("single")
    for task in tasks:
        written = json.dumps([call.model_dump() for call in calls_of(family, task)])
        assert family.verify(task, written) == 1
        assert family.verify(task, "[]") == family.verify(task, "x") == 0
        assert family.verify(task, None) == 0


def test_the_reading_material_has_no_heldout_function():
    family = functions()
    heldout = {spec.name for task in family.tasks("heldout", 300) for spec in family.specs_of(task)}
    material = family.reading_material(NOWHERE, [])
    for seed in range(200):
        log = material.write(random.Random(seed))
        assert not heldout.intersection(log.prompt.split())


def test_kinds_are_named_once():
    with pytest.raises(ValidationError, match="kinds"):
        functions(apis={"kinds": ["none", "none"]})

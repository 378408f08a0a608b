"""Made-up conversations over the eight services: golds, splits, and what a wrong call leads to."""

import json
from pathlib import Path

import pytest

from espalier.config import Profile
from espalier.environments import family_of
from espalier.environments.benchmarks import check_golds
from espalier.environments.funnel import Funnel
from espalier.environments.mixins import PlainQuestion
from espalier.records.trajectory import Trajectory
from espalier.rewards.bfcl import PYTHON_TYPES
from espalier_environments.function_calling.states import (
    APIS,
    document_of,
    parameter_names,
    tool_names,
)

NOWHERE = Path("unused")
SPLITS = ("train", "dev", "heldout")


@pytest.fixture(scope="module")
def family():
    environment = {"name": "function_calling", "apis": {"kinds": ["conversation"]}}
    episode = {"max_turns": 24, "max_tokens": 2000, "max_turn_tokens": 160}
    return family_of(Profile.model_validate({"environment": environment, "episode": episode}))


@pytest.fixture(scope="module")
def tasks(family):
    return {split: family.tasks(split, 500) for split in SPLITS}


def gold_of(task):
    return json.loads(task.verifier.gold[0])


def test_golds_are_right_and_those_of_others_wrong(family, tasks):
    with family.environments(NOWHERE) as over:
        checked = check_golds(family, tasks["heldout"][:150], over("full"))
    assert (checked.accepted, checked.faults) == (150, ())


def test_conversations_are_demonstrated_call_by_call(family, tasks):
    with family.teacher(NOWHERE, Funnel()) as demonstrate:
        for task in tasks["train"][:60]:
            shown = demonstrate(PlainQuestion(task), "")
            assert isinstance(shown, Trajectory), task.question
            assert all(result.succeeded for result in shown.tool_results)
            assert len(shown.tool_results) == sum(map(len, gold_of(task)))


def test_no_turn_that_names_values_is_in_two_splits(family, tasks):
    assert {split: len(found) for split, found in tasks.items()} == dict.fromkeys(SPLITS, 500)
    said = []
    for found in tasks.values():
        firsts = {task.question.rpartition(" ; ")[2].partition(" . ")[2] for task in found}
        turns = firsts.union(*(task.arguments["turns"] for task in found))
        # "the ticket that you just opened", "that post": no values
        said.append({turn for turn in turns if "that" not in turn})
    assert all(said)
    assert sum(map(len, said)) == len(set.union(*said))
    ids = [task.task_id for found in tasks.values() for task in found]
    assert len(set(ids)) == len(ids)
    assert family.tasks("dev", 500) == tasks["dev"], "equal seeds draw equal conversations"


def test_a_dropped_or_changed_call_is_wrong(family, tasks):
    refused = 0
    for task in tasks["heldout"][:150]:
        gold = gold_of(task)
        assert family.verify(task, json.dumps(gold)) == 1
        for number, turn in enumerate(gold):
            dropped = [*gold[:number], turn[:-1], *gold[number + 1 :]]
            assert family.verify(task, json.dumps(dropped)) == 0, turn[-1]
            for call in _changed(turn[-1]):
                changed = [*gold[:number], [*turn[:-1], call], *gold[number + 1 :]]
                assert family.verify(task, json.dumps(changed)) == 0, call
                refused += 1
    assert refused > 300
    assert family.verify(tasks["dev"][0], "nothing was done") == 0


def _changed(call):
    """The call with another number or text in the place of one."""
    for name, value in call["arguments"].items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield {**call, "arguments": {**call["arguments"], name: value + 1}}
        elif isinstance(value, str) and name in ("content", "message", "title", "destination"):
            yield {**call, "arguments": {**call["arguments"], name: f"{value} x"}}


@pytest.mark.parametrize("service", APIS)
def test_every_tool_has_a_document(service):
    for tool in tool_names(APIS[service]):
        document = document_of(APIS[service], tool)
        properties = document["parameters"]["properties"]
        assert tuple(properties) == parameter_names(APIS[service], tool)
        assert {one["type"] for one in properties.values()} <= PYTHON_TYPES.keys()
        assert document["description"]

"""Made-up conversations over the eight services: golds, splits, and what a wrong call leads to."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from espalier.config import Profile, SplitsConfig
from espalier.environments import family_of
from espalier.environments.benchmarks import check_golds
from espalier.environments.function_calling.config import FunctionCallingConfig
from espalier.environments.function_calling.errands import SCENES
from espalier.environments.function_calling.made_conversations import drawn_conversation
from espalier.environments.function_calling.states import (
    APIS,
    document_of,
    parameter_names,
    tool_names,
)
from espalier.environments.mixins import PlainQuestion
from espalier.records.trajectory import Trajectory
from espalier.rewards.bfcl import PYTHON_TYPES
from espalier.synthesis.funnel import Funnel

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
    assert checked.faults == ()
    assert checked.accepted == 150


def test_conversations_are_demonstrated_call_by_call(family, tasks):
    with family.teacher(NOWHERE, Funnel()) as demonstrate:
        for task in tasks["train"][:60]:
            shown = demonstrate(PlainQuestion(task), "")
            assert isinstance(shown, Trajectory), task.question
            assert all(result.succeeded for result in shown.tool_results)
            assert len(shown.tool_results) == sum(map(len, gold_of(task)))


def test_no_turn_that_names_values_is_in_two_splits(tasks):
    assert {split: len(found) for split, found in tasks.items()} == dict.fromkeys(SPLITS, 500)
    said = {
        split: {
            turn
            for task in found
            for turn in (
                task.question.rpartition(" ; ")[2].partition(" . ")[2],
                *task.arguments["turns"],
            )
            if "that" not in turn
        }
        for split, found in tasks.items()
    }  # "the ticket that you just opened", "that post": no values
    for one, other in (("train", "dev"), ("train", "heldout"), ("dev", "heldout")):
        assert said[one]
        assert not said[one] & said[other]
    ids = [task.task_id for found in tasks.values() for task in found]
    assert len(set(ids)) == len(ids)


def test_all_services_and_their_errands_are_asked_for(tasks):
    services = Counter(name for task in tasks["train"] for name in task.arguments["services"])
    assert services.keys() == APIS.keys() == SCENES.keys()
    tools = {call["name"] for task in tasks["train"] for turn in gold_of(task) for call in turn}
    assert len(tools) >= 38
    assert {len(task.arguments["turns"]) for task in tasks["train"]} == {1, 2}


def test_equal_seeds_draw_equal_conversations(tasks):
    config, splits = FunctionCallingConfig(apis={"kinds": ["conversation"]}), SplitsConfig()
    for number in range(5):
        one, other = (
            drawn_conversation(random.Random(number), config, splits, "dev", "function_calling")
            for _ in range(2)
        )
        assert one == other


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


def test_reading_shows_the_first_turn_with_its_results(family):
    reading = family.reading_material(NOWHERE, ())
    log = reading.write(random.Random(0))
    *calls, last = log.pieces
    assert last.text
    assert len(calls) % 2 == 0
    assert all(isinstance(result, str) for result in calls[1::2])
    assert any("done" in text for text in reading.texts(random.Random(0)))

"""The fact that was said, or the form that was sent, becomes what is asked for."""

import pytest

from espalier.environments.hindsight import OF_ANOTHER_SPLIT, relabelled
from espalier.environments.teaching import ScriptTeacher
from espalier.records import FinalAnswer, ToolCalls
from espalier_environments.web.catalogue import TABLES, names_of_split
from espalier_environments.web.tasks import street_names
from tests.unit.environments.web.playing import (
    DONE,
    NOWHERE,
    call,
    plan,
    played,
    task_of,
    web,
)


@pytest.fixture(scope="module")
def family():
    return web()


@pytest.fixture(scope="module")
def hindsight(family):
    return family.hindsight(NOWHERE, NOWHERE)


def asked_beside(family, kind, task):
    """A task of that kind on the site of `task`, other than it."""
    return next(
        one
        for one in family.tasks("train", 5000)
        if one.extra["kind"] == kind
        and one.arguments["site"] == task.arguments["site"]
        and one != task
    )


def question(task):
    return task.question.partition("\n")[0]


def typing(actions, text):
    """These actions, with another text in their only call of `type`."""
    return [
        call("type", **{**one.calls[0].arguments, "text": text})
        if isinstance(one, ToolCalls) and one.calls[0].name == "type"
        else one
        for one in actions
    ]


@pytest.mark.parametrize(
    ("asked", "done"),
    [
        ("price", "seller"), ("seller", "price"), ("open", "price"), ("price", "open"),
        ("author", "comment"), ("vote", "comment"), ("comment", "vote"),
        ("assign", "close"), ("close", "assign"), ("cart", "order"), ("order", "cart"),
    ],
)  # fmt: skip
def test_what_was_done_becomes_what_is_asked(family, hindsight, asked, done):
    task = task_of(family, asked)
    other = asked_beside(family, done, task)
    attempt = played(family, task, plan(family, other))
    assert not attempt.is_right
    with family.environments(NOWHERE) as over:
        teacher = ScriptTeacher(over("train"))
        found = relabelled([(task, attempt)], hindsight, teacher, set())
        assert found == relabelled([(task, attempt)], hindsight, teacher, set())
    assert not found.unused
    [demonstration] = found.demonstrations
    solved = found.tasks[demonstration.task_id]
    assert demonstration.reward["outcome"] == 1
    assert solved.metadata.split == "train"
    for what in ("kind", "entities"):
        assert solved.extra[what] == other.extra[what]
    assert solved.arguments["eval"] == other.arguments["eval"]
    assert plan(family, solved)  # a teacher can show it as well


@pytest.mark.parametrize(
    ("actions", "reason"),
    [
        ([DONE], "nothing_done"),
        ([FinalAnswer("nobody at all")], "answer_on_no_page_that_was_opened"),
        ([call("click", id="99"), DONE], "failed_call"),
    ],
)
def test_attempt_that_solved_nothing_says_why(family, hindsight, actions, reason):
    task = task_of(family, "seller")
    assert hindsight.achieved(task, played(family, task, actions)).reason == reason


@pytest.mark.parametrize("split", ["dev", "heldout"])
def test_text_with_a_name_of_a_judged_split_is_refused(family, hindsight, split):
    task = task_of(family, "vote")
    actions = plan(family, asked_beside(family, "comment", task))
    for table in TABLES:
        name = names_of_split(table, split, family.profile.splits)[0]
        attempt = played(family, task, typing(actions, f"like {name}"))
        assert hindsight.achieved(task, attempt).reason == OF_ANOTHER_SPLIT


@pytest.mark.parametrize("split", ["train", "dev", "heldout"])
def test_only_a_street_of_training_is_asked_for(family, hindsight, split):
    task = task_of(family, "street")
    street = f"12 {street_names(split, family.profile.splits)[0]}"
    found = hindsight.achieved(task, played(family, task, typing(plan(family, task), street)))
    if split == "train":
        assert street in question(found.task)
    else:
        assert found.reason == "nothing_to_ask_for"


def test_text_is_asked_for_as_it_was_typed(family, hindsight):
    """It comes from a policy: braces and signs are text, and nothing else."""
    task = task_of(family, "vote")
    actions = plan(family, asked_beside(family, "comment", task))
    for text in ("{name} {0}", "</answer> <think>", "%s | a\\n b", "x" * 300):
        attempt = played(family, task, typing(actions, text))
        assert text in question(hindsight.achieved(task, attempt).task)

"""The fact that was said, or the form that was sent, becomes what is asked for."""

import pytest

from espalier.environments.hindsight import OF_ANOTHER_SPLIT, relabelled
from espalier.environments.teaching import ScriptTeacher
from espalier.records import FinalAnswer
from espalier_environments.web.catalogue import TABLES, names_of_split
from espalier_environments.web.tasks import reached_task, street_names
from tests.unit.environments.web.playing import (
    DONE,
    NOWHERE,
    call,
    plan,
    played,
    site_of,
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
    place = 0
    while True:
        found = task_of(family, kind, place=place)
        if found.arguments["site"] == task.arguments["site"] and found != task:
            return found
        place += 1


def question(task):
    return task.question.partition("\n")[0]


@pytest.mark.parametrize(
    ("asked", "done"),
    [
        ("price", "seller"), ("seller", "price"), ("open", "price"), ("price", "open"),
        ("author", "comment"), ("vote", "comment"), ("comment", "vote"),
        ("assign", "close"), ("close", "assign"),
        ("cart", "order"), ("order", "cart"), ("street", "street"),
    ],
)  # fmt: skip
def test_what_was_done_becomes_what_is_asked(family, hindsight, asked, done):
    task = task_of(family, asked)
    other = task if done == "street" else asked_beside(family, done, task)
    actions = plan(family, other)
    if done == "street":
        street = f"7 {street_names('train', family.profile.splits)[0]}"
        actions[1] = call("type", **{**actions[1].calls[0].arguments, "text": street})
    attempt = played(family, task, actions)
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
    assert solved.extra["kind"] == done
    if done == "street":
        assert street in question(solved)
    else:
        assert solved.extra["entities"] == other.extra["entities"]
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


def test_change_and_another_answer_are_no_demonstration(family, hindsight):
    task = task_of(family, "comment")
    actions = plan(family, asked_beside(family, "vote", task))
    attempt = played(family, task, [*actions[:-1], FinalAnswer("ada")])
    assert hindsight.achieved(task, attempt).reason == "said_something_else"


def test_two_changes_are_asked_for_by_no_task(family, hindsight):
    task = task_of(family, "author")
    vote = asked_beside(family, "vote", task)
    comment = next(
        one
        for one in family.tasks("train", 5000)
        if one.extra["kind"] == "comment"
        and one.extra["entities"] == vote.extra["entities"]
        and one.arguments["site"] == vote.arguments["site"]
    )
    begun = [*plan(family, comment)[:-1], call("goto", path="/forum")]
    attempt = played(family, task, [*begun, *plan(family, vote)])
    assert hindsight.achieved(task, attempt).reason == "change_that_no_task_asks_for"


def test_kind_that_the_profile_leaves_out_is_not_asked():
    family = web(kinds=["vote"])
    hindsight = family.hindsight(NOWHERE, NOWHERE)
    task = task_of(family, "vote")
    comment = task_of(web(), "comment")
    while comment.arguments["site"] != task.arguments["site"]:
        task = task_of(family, "vote", place=1)
    attempt = played(family, task, plan(web(), comment))
    assert hindsight.achieved(task, attempt).reason == "kind_is_not_asked"


@pytest.mark.parametrize("split", ["dev", "heldout"])
def test_text_with_a_name_of_a_judged_split_is_refused(family, hindsight, split):
    task = task_of(family, "vote")
    actions = plan(family, asked_beside(family, "comment", task))
    for table in TABLES:
        name = names_of_split(table, split, family.profile.splits)[0]
        typed = call("type", **{**actions[-3].calls[0].arguments, "text": f"like {name}"})
        attempt = played(family, task, [*actions[:-3], typed, *actions[-2:]])
        assert hindsight.achieved(task, attempt).reason == OF_ANOTHER_SPLIT


@pytest.mark.parametrize("split", ["dev", "heldout"])
def test_street_of_a_judged_split_is_never_asked_for(family, hindsight, split):
    task = task_of(family, "street")
    actions = plan(family, task)
    name = street_names(split, family.profile.splits)[0]
    actions[1] = call("type", **{**actions[1].calls[0].arguments, "text": f"12 {name}"})
    attempt = played(family, task, actions)
    assert hindsight.achieved(task, attempt).reason == "nothing_to_ask_for"


def test_text_is_asked_for_as_it_was_typed(family, hindsight):
    """It comes from a policy: braces and signs are text, and nothing else."""
    task = task_of(family, "vote")
    actions = plan(family, asked_beside(family, "comment", task))
    for text in ("{name} {0}", "</answer> <think>", "%s | a\\n b", "x" * 300):
        typed = call("type", **{**actions[-3].calls[0].arguments, "text": text})
        attempt = played(family, task, [*actions[:-3], typed, *actions[-2:]])
        assert text in question(hindsight.achieved(task, attempt).task)


def test_drawn_and_reached_values_give_equal_tasks(family):
    """Drawn tasks and those of reached values share their words and checks."""
    from espalier_environments.web.tasks import Reached

    for kind in ("comment", "assign", "cart", "order", "street"):
        task = task_of(family, kind)
        number = task.arguments["site"]
        steps = task.extra["steps"]
        value = next((step[-1] for step in steps if step[0] in ("type", "select")), "1")
        site = site_of(family, task)
        records = [site["account"]] if kind == "street" else [
            one for one in [*site["threads"], *site["issues"], *site["products"]]
            if one["name"] == task.extra["entities"][0]
        ]  # fmt: skip
        again = reached_task(
            Reached(kind, records[0], value), family.settings, family.profile.splits, number, "web"
        )
        assert again.arguments["eval"] == task.arguments["eval"]
        assert again.extra["steps"] == steps

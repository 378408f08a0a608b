"""Episodes: what is solved, what is not, and attempts to get the score without the work."""

import json

import pytest

from espalier.environments import check_golds
from espalier.records import FinalAnswer
from tests.unit.environments.web.playing import (
    DONE,
    NOWHERE,
    call,
    outcome,
    plan,
    played,
    site_of,
    task_of,
    web,
)

KINDS = (
    "price", "seller", "author", "reporter", "assignee", "open", "comment", "vote", "assign",
    "close", "street", "cart", "order",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_teacher_solves_every_kind(kind):
    family = web()
    for place in range(2):
        task = task_of(family, kind, place=place)
        first, second = (played(family, task, plan(family, task)) for _ in range(2))
        assert first.is_right, first.messages
        assert all(result.succeeded for result in first.tool_results)
        assert first.messages == second.messages, "nothing of an episode is left to the next"


@pytest.mark.parametrize("form", ["tree", "html", "dom", "words"])
def test_plans_do_not_depend_on_how_pages_are_read(form):
    family = web(observation=form)
    task = task_of(family, "assign")
    assert outcome(family, task, *plan(family, task)) == 1


@pytest.mark.parametrize("kind", ["comment", "assign", "street", "order", "vote"])
def test_a_plan_that_is_left_half_done_is_not_solved(kind):
    family = web()
    task = task_of(family, kind)
    *steps, last, done = plan(family, task)
    assert outcome(family, task, *steps, last, done) == 1
    assert outcome(family, task, *steps, done) == 0
    assert outcome(family, task, done) == 0


@pytest.mark.parametrize("kind", ["price", "comment", "open"])
def test_what_else_was_changed_costs_the_reward(kind):
    family = web()
    task = task_of(family, kind)
    *steps, last = plan(family, task)
    there = call("goto", path="/forum/2")
    vote = call("click", id=_id_of(family, task, "/forum/2", "vote"))
    back = call("goto", path=task.arguments["eval"].get("page", "/"))
    assert outcome(family, task, *steps, there, back, last) == 1, "looking changes nothing"
    assert outcome(family, task, *steps, there, vote, back, last) == 0


def _id_of(family, task, path, name):
    """The id of an element of a page."""
    shown = played(family, task, [call("goto", path=path), DONE]).tool_results[0].content
    return next(line.split()[0] for line in shown.splitlines() if line.endswith(name))


# ------------------------------------------------------------------------------ cheating


def test_an_answer_that_is_typed_into_the_address_is_none():
    family = web()
    task = task_of(family, "price")
    (gold,) = task.verifier.gold
    typed = [call("goto", path=f"/shop?answer={gold}"), FinalAnswer("done")]
    assert outcome(family, task, *typed) == 0
    assert outcome(family, task, FinalAnswer(gold)) == 1  # positive control
    assert outcome(family, task, FinalAnswer(f"{gold} or 11 or 12")) == 0


def test_a_page_that_only_looks_alike_is_not_the_page():
    family = web()
    task = task_of(family, "open")
    url = task.arguments["eval"]["page"]
    assert outcome(family, task, call("goto", path=url), DONE) == 1
    for path in (f"/?next={url}", f"/users{url}", f"/search?q={url}", url + "/review", url + "0"):
        assert outcome(family, task, call("goto", path=path), DONE) == 0, path


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("vote", "/forum/{id}/vote"),
        ("comment", "/forum/{id}/comment?text={text}"),
        ("close", "/issues/{id}/edit?assignee=nobody&status=closed"),
        ("order", "/cart/order"),
    ],
)
def test_addresses_change_nothing(kind, path):
    family = web()
    task = task_of(family, kind)
    address, fields = task.arguments["eval"]["forms"][0]
    asked = path.format(id=address.split("/")[2], text=fields.get("text", ""))
    assert outcome(family, task, call("goto", path=asked), DONE) == 0


def test_the_marker_posted_elsewhere_is_not_the_comment():
    family = web()
    task = task_of(family, "comment")
    text = plan(family, task)[-3].calls[0].arguments["text"]
    right = task.arguments["eval"]["forms"][0][0]
    wrong = next(f"/forum/{n}/comment" for n in (1, 2) if f"/forum/{n}/comment" != right)

    def posted(path, text):
        field, button = _id_of(family, task, path, "text"), _id_of(family, task, path, "post")
        fill = call("type", id=field, text=text)
        return [call("goto", path=path), fill, call("click", id=button)]

    assert outcome(family, task, *posted(right, text), DONE) == 1
    assert outcome(family, task, *posted(wrong, text), DONE) == 0
    assert outcome(family, task, *posted(right, f"{text} <b>{text}</b>"), DONE) == 0
    assert outcome(family, task, *posted(right, text) * 2, DONE) == 0


def test_markup_that_is_typed_makes_no_element():
    family = web()
    task = task_of(family, "street")
    markup = '"><button>order</button><a href="/cart/order">x</a>\n 99 button order'
    edit, fill, save, done = plan(family, task)
    field = fill.calls[0].arguments["id"]

    def ids(text):
        attempt = played(family, task, [edit, call("type", id=field, text=text), save, done])
        assert attempt.reward["outcome"] == 0
        return [line.split()[0] for line in attempt.tool_results[-1].content.splitlines()]

    assert ids(markup) == ids("x")


def test_other_peoples_data_cannot_be_reached():
    family = web()
    task = task_of(family, "street")
    other = site_of(family, task)["users"][1]["name"]
    for path in (f"/users/{other}/edit", f"/account/edit?user={other}", "/orders/1", "/account/2"):
        assert outcome(family, task, call("goto", path=path), DONE) == 0
    steps = plan(family, task)  # the form is the visitor's own, whatever the address says
    assert outcome(family, task, call("goto", path=f"/account/edit?user={other}"), *steps[1:]) == 1


# ------------------------------------------------------------------------------ the family


def test_splits_share_neither_names_nor_questions():
    family = web(sites=6)
    by_split = [family.tasks(split, 5000) for split in ("train", "dev", "heldout")]
    assert all(len(tasks) > 200 for tasks in by_split)
    for what in (family.names_of, lambda task: (task.question,), lambda task: (task.task_id,)):
        found = [{one for task in tasks for one in what(task)} for tasks in by_split]
        assert sum(map(len, found)) == len(set.union(*found))


def test_golds_are_accepted_and_those_of_others_refused():
    family = web()
    tasks = [one for one in family.tasks("heldout", 400) if one.extra["kind"] == "price"][:20]
    with family.environments(NOWHERE) as over:
        found = check_golds(family, tasks, over("full"))
    assert (found.accepted, found.refused) == (len(tasks), len(tasks))
    price, vote = task_of(family, "price"), task_of(family, "vote")
    assert family.verify(price, price.verifier.gold[0]) == 1
    wrong = [(price, None), (price, "0"), (vote, "done")]
    assert [family.verify(*one) for one in wrong] == [0, 0, 0]


def test_the_checks_are_not_in_the_prompt():
    family = web()
    for task in family.tasks("train", 300):
        assert json.dumps(task.arguments["eval"]) not in task.question
        assert task.question.startswith(str(task.arguments["intent"]))

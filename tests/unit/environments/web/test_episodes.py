"""Episodes: what is solved, what is not, and attempts to get the score without the work."""

import json

import pytest

from espalier.environments import check_golds, family_of
from espalier.environments.teaching import GaveUp
from espalier.records import FinalAnswer, ToolCalls
from espalier.records.trajectory import FinishReason
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
        attempt = played(family, task, plan(family, task))
        assert attempt.is_right, attempt.messages
        assert all(result.succeeded for result in attempt.tool_results)


@pytest.mark.parametrize("form", ["tree", "html", "dom", "words"])
def test_plans_do_not_depend_on_how_pages_are_read(form):
    family = web(observation=form)
    task = task_of(family, "assign")
    assert outcome(family, task, *plan(family, task)) == 1
    assert (
        task.question.partition("\n")[2]
        == web(observation=form)
        .tasks("train", 5000)[
            [one.task_id for one in family.tasks("train", 5000)].index(task.task_id)
        ]
        .question.partition("\n")[2]
    )


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
    steps = plan(family, task)
    vote = [
        call("goto", path="/forum/2"),
        call("click", id=_id_of(family, task, "/forum/2", "vote")),
        call("goto", path=_last_page(family, task)),
    ]
    look = [call("goto", path="/forum/2"), call("goto", path=_last_page(family, task))]
    assert outcome(family, task, *steps[:-1], *look, steps[-1]) == 1  # looking changes nothing
    assert outcome(family, task, *steps[:-1], *vote, steps[-1]) == 0


def _last_page(family, task):
    return task.arguments["eval"].get("page", "/")


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


def test_addresses_change_nothing():
    family = web()
    for kind, path in (
        ("vote", "/forum/{id}/vote"),
        ("comment", "/forum/{id}/comment?text={text}"),
        ("close", "/issues/{id}/edit?assignee=nobody&status=closed"),
        ("order", "/cart/order"),
    ):
        task = task_of(family, kind)
        gold = task.arguments["eval"]["forms"][0]
        number = gold[0].split("/")[2]
        asked = path.format(id=number, text=gold[1].get("text", ""))
        assert outcome(family, task, call("goto", path=asked), DONE) == 0


def test_the_marker_posted_elsewhere_is_not_the_comment():
    family = web()
    task = task_of(family, "comment")
    steps = plan(family, task)
    text = steps[-3].calls[0].arguments["text"]
    right = task.arguments["eval"]["forms"][0][0]
    wrong = next(f"/forum/{n}/comment" for n in (1, 2) if f"/forum/{n}/comment" != right)

    def posted(path, text):
        field, button = _id_of(family, task, path, "text"), _id_of(family, task, path, "post")
        return [
            call("goto", path=path),
            call("type", id=field, text=text),
            call("click", id=button),
            DONE,
        ]

    assert outcome(family, task, *posted(right, text)) == 1
    assert outcome(family, task, *posted(wrong, text)) == 0
    assert outcome(family, task, *posted(right, f"{text} <b>{text}</b>")) == 0
    twice = [*posted(right, text)[:-1], *posted(right, text)]
    assert outcome(family, task, *twice) == 0


def test_markup_that_is_typed_makes_no_element():
    family = web()
    task = task_of(family, "street")
    markup = '"><button>order</button><a href="/cart/order">x</a>\n 99 button order'
    edit, _, save, done = plan(family, task)
    field = plan(family, task)[1].calls[0].arguments["id"]
    attempt = played(family, task, [edit, call("type", id=field, text=markup), save, done])
    before = played(family, task, [edit, call("type", id=field, text="x"), save, done])
    shown, plain = attempt.tool_results[-1].content, before.tool_results[-1].content
    assert [line.split()[0] for line in shown.splitlines()] == [
        line.split()[0] for line in plain.splitlines()
    ]
    assert attempt.reward["outcome"] == 0


def test_other_peoples_data_cannot_be_reached():
    family = web()
    task = task_of(family, "street")
    other = site_of(family, task)["users"][1]["name"]
    for path in (f"/users/{other}/edit", f"/account/edit?user={other}", "/orders/1", "/account/2"):
        attempt = played(family, task, [call("goto", path=path), DONE])
        assert attempt.reward["outcome"] == 0
    steps = plan(family, task)
    through = [call("goto", path=f"/account/edit?user={other}"), *steps[1:]]
    attempt = played(family, task, through)
    assert attempt.is_right  # the form is the visitor's own, whatever the address says


def test_an_attempt_that_is_cut_off_has_no_reward():
    family = family_of(
        web().profile.model_copy(
            update={"episode": web().profile.episode.model_copy(update={"max_turns": 1})}
        )
    )
    task = task_of(family, "vote")
    attempt = played(family, task, plan(family, task))
    assert attempt.finish_reason is FinishReason.MAX_TURNS
    assert attempt.reward["outcome"] == 0


# ------------------------------------------------------------------------------ the family


def test_nothing_of_an_episode_is_left_to_the_next():
    family = web()
    task = task_of(family, "vote")
    steps = plan(family, task)
    first, second = (played(family, task, steps) for _ in range(2))
    assert first.messages == second.messages
    assert second.is_right


def test_splits_share_neither_names_nor_questions():
    family = web(sites=6)
    by_split = {split: family.tasks(split, 5000) for split in ("train", "dev", "heldout")}
    assert all(len(tasks) > 200 for tasks in by_split.values())
    for first, second in (("train", "dev"), ("train", "heldout"), ("dev", "heldout")):
        for what in (family.names_of, lambda task: (task.question,), lambda task: (task.task_id,)):
            sides = [{one for task in by_split[s] for one in what(task)} for s in (first, second)]
            assert not sides[0] & sides[1]


def test_the_default_sites_have_thousands_of_heldout_tasks():
    family = web(site={}, sites=10)
    assert len(family.tasks("heldout", 10_000)) > 1500


def test_golds_are_accepted_and_those_of_others_refused():
    family = web()
    tasks = [one for one in family.tasks("heldout", 400) if one.extra["kind"] == "price"][:20]
    with family.environments(NOWHERE) as over:
        found = check_golds(family, tasks, over("full"))
    assert (found.accepted, found.refused) == (len(tasks), len(tasks))


def test_a_plan_that_does_not_fit_gives_up():
    family = web()
    task = task_of(family, "price")
    extra = {**task.extra, "steps": [["click", "no such button"]]}
    task = task.model_copy(update={"metadata": task.metadata.model_copy(update={"extra": extra})})
    with pytest.raises(GaveUp, match="no such button"):
        plan(family, task)


def test_an_answer_alone_is_judged_on_the_untouched_site():
    family = web()
    price, vote = task_of(family, "price"), task_of(family, "vote")
    assert family.verify(price, price.verifier.gold[0]) == 1
    assert (
        family.verify(price, None) == family.verify(price, "0") == family.verify(vote, "done") == 0
    )


def test_ids_may_be_numbers_and_calls_stand_together():
    family = web()
    task = task_of(family, "street")
    edit, fill, save, done = plan(family, task)
    number = int(edit.calls[0].arguments["id"])
    edit = call("click", id=number)
    together = ToolCalls((*edit.calls, *fill.calls, *save.calls))
    assert outcome(family, task, together, done) == 1


def test_reading_logs_ask_nothing():
    family = web()
    train = family.tasks("train", 200)
    material = family.reading_material(NOWHERE, train)
    import random

    words = {"price", "who", "assign", "close", "comment", "vote", "how", "?"}
    for seed in range(40):
        log = material.write(random.Random(seed))
        prompt = log.prompt.partition("\n")[0].split()
        assert not words & set(prompt)
        assert isinstance(log.pieces[-1], FinalAnswer)
    assert material.write(random.Random(1)) == material.write(random.Random(1))
    assert len(list(material.texts(random.Random(0)))) > 500


@pytest.mark.parametrize("kind", KINDS)
def test_of_words_the_teacher_thinks_as_the_page_says_them(kind):
    family = web(observation="words")
    task = task_of(family, kind)
    attempt = played(family, task, plan(family, task))
    read = task.question
    for message in attempt.messages[len(task.prompt) :]:
        if message.role == "tool":
            read += message.content
        elif message.tool_calls:
            (made,) = message.tool_calls
            assert message.thought in read
            assert message.thought.endswith(f" {made.arguments['id']}")
        elif message.content != "done":
            assert message.thought == f"{kind} {message.content}"
            assert message.thought in read


def test_the_checks_are_not_in_the_prompt():
    family = web()
    for task in family.tasks("train", 300):
        assert json.dumps(task.arguments["eval"]) not in task.question
        assert task.question.startswith(str(task.arguments["intent"]))

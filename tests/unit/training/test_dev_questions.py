from collections import Counter

import pytest

from espalier.config import Profile
from espalier.records import Message, Task, TaskMetadata, Verifier, write_tasks
from espalier.records.knowledge import Document
from espalier.training.dev_questions import dev_questions, few_questions_line
from espalier_search.search_qa import SearchQA, family

DOCUMENTS = [
    Document(f"d{n}", f"Town {name}", (f"The river of Town {name} is the Salm.",), "train")
    for n, name in enumerate(("Lande", "Brersten", "Matrum", "Fusel"))
]


def task(split, n, name, hops=1):
    return Task(
        task_id=f"{split}-{n}",
        prompt=(Message(role="user", content=f"Which river has Town {name}?"),),
        environment="search_qa",
        arguments={"index": split},
        verifier=Verifier(kind="exact_match", gold=("Salm",)),
        metadata=TaskMetadata(split=split, source="webshaper", extra={"hops": hops}),
    )


DEV = [task("dev", n, "Odo") for n in range(3)]
TRAIN = [task("train", n, one.title.split()[1]) for n, one in enumerate(DOCUMENTS)]


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    monkeypatch.setattr(family, "load_documents", lambda path: DOCUMENTS)
    (tmp_path / "accepted" / "tasks").mkdir(parents=True)
    write_tasks(tmp_path / "accepted" / "tasks" / "dev.jsonl", DEV)
    write_tasks(tmp_path / "accepted" / "tasks" / "train.jsonl", TRAIN)
    write_tasks(tmp_path / "accepted" / "tasks" / "heldout.jsonl", [task("heldout", 0, "Odo")])
    return {"accepted": tmp_path / "accepted", "knowledge": tmp_path}


def asked(inputs, *, count, by="training", **settings):
    section = {"dev_questions": count} | settings.pop(by, {})
    profile = Profile(**settings, **{by: section})
    return dev_questions(profile, SearchQA(profile), inputs, training=by)


OWN = {"knowledge": {"source": "folder", "path": "texts"}}


def test_few_dev_questions_have_training_tasks_beside_them(inputs):
    questions = asked(inputs, count=6, **OWN)
    assert questions[:3] == DEV
    assert {one.metadata.split for one in questions[3:]} == {"train"}
    assert len({one.task_id for one in questions}) == 6
    known = {one.task_id: one.question for one in TRAIN}
    assert any(one.question != known[one.task_id] for one in questions[3:])
    assert questions == asked(inputs, count=6, **OWN)
    assert questions != asked(inputs, count=6, seed=1, **OWN)


def test_training_tasks_are_asked_equally_many_of_each_kind(inputs):
    tasks = [task("train", n, "Odo", hops) for n, hops in enumerate((4, 4, 4, 4, 2, 3, 3))]
    write_tasks(inputs["accepted"] / "tasks" / "train.jsonl", tasks)
    assert hops_of(asked(inputs, count=9, **OWN)[3:]) == {2: 1, 3: 2, 4: 3}
    assert len(asked(inputs, count=100, **OWN)) == len(DEV) + len(tasks), "no more than there are"


@pytest.mark.parametrize(
    ("count", "settings"),
    [(3, OWN), (2, OWN), (6, {}), (6, OWN | {"training": {"renamed_share": 0.0}})],
)
def test_real_names_alone_are_asked_otherwise(inputs, count, settings):
    assert asked(inputs, count=count, **settings) == DEV[-count:]


def test_both_trainings_ask_questions_and_worlds_of_their_own(inputs):
    first, last = (asked(inputs, count=1, by=one) for one in ("warm_start", "training"))
    assert (first, last) == (DEV[:1], DEV[-1:])
    first, last = (asked(inputs, count=6, by=one, **OWN) for one in ("warm_start", "training"))
    assert first[:3] == last[:3] == DEV
    assert first[3:] != last[3:]


@pytest.fixture
def of_two_kinds(inputs):
    """Forty dev questions, the six of four hops among the first; a fifth of the held-out ones."""
    folder = inputs["accepted"] / "tasks"
    dev = [task("dev", n, "Odo", 4 if n < 6 else 1) for n in range(40)]
    write_tasks(folder / "dev.jsonl", dev)
    heldout = [task("heldout", n, "Odo", 4 if n < 20 else 1) for n in range(100)]
    write_tasks(folder / "heldout.jsonl", heldout)
    return inputs


def asked_by_both(inputs, first, last):
    sections = {"warm_start": {"dev_questions": first}, "training": {"dev_questions": last}}
    profile = Profile.model_validate(sections)
    return [dev_questions(profile, SearchQA(profile), inputs, training=by) for by in sections]


def hops_of(questions):
    return Counter(one.extra["hops"] for one in questions)


@pytest.mark.parametrize(
    ("counts", "of_first", "of_last"),
    [
        ((10, 15), {4: 2, 1: 8}, {4: 3, 1: 12}),
        ((20, 20), {4: 3, 1: 17}, {4: 3, 1: 17}),  # a rare kind is shared by both
    ],
)
def test_dev_questions_have_the_shares_of_heldout_ones(of_two_kinds, counts, of_first, of_last):
    first, last = asked_by_both(of_two_kinds, *counts)
    assert (hops_of(first), hops_of(last)) == (of_first, of_last)
    assert not {one.task_id for one in first} & {one.task_id for one in last}
    assert asked_by_both(of_two_kinds, *counts) == [first, last]


def test_kinds_that_are_not_held_out_fill_up(of_two_kinds):
    heldout = [task("heldout", n, "Odo", 4) for n in range(10)]
    write_tasks(of_two_kinds["accepted"] / "tasks" / "heldout.jsonl", heldout)
    hops = [hops_of(questions) for questions in asked_by_both(of_two_kinds, 8, 40)]
    assert hops == [{4: 6, 1: 2}, {4: 6, 1: 34}]


@pytest.mark.parametrize(("count", "points"), [(100, None), (99, 5), (4, 25), (0, 50)])
def test_too_few_dev_questions_are_said(count, points):
    line = few_questions_line(count, "training.dev_questions")
    assert line is None if points is None else f" {points} points" in line

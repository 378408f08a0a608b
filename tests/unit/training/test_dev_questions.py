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
    added = asked(inputs, count=9, **OWN)[3:]
    assert Counter(one.extra["hops"] for one in added) == {2: 1, 3: 2, 4: 3}


def test_there_are_no_more_than_there_are_tasks(inputs):
    assert len(asked(inputs, count=100, **OWN)) == len(DEV) + len(TRAIN)


@pytest.mark.parametrize(
    ("count", "settings"),
    [(3, OWN), (2, OWN), (6, {}), (6, OWN | {"training": {"renamed_share": 0.0}})],
)
def test_real_names_alone_are_asked_otherwise(inputs, count, settings):
    assert asked(inputs, count=count, **settings) == DEV[-count:]


def test_the_warm_start_asks_the_first_and_rl_the_last(inputs):
    first, last = (asked(inputs, count=1, by=one)[0] for one in ("warm_start", "training"))
    assert (first, last) == (DEV[0], DEV[-1])


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
    sections = {
        "warm_start": {"dev_questions": first},
        "training": {"dev_questions": last},
    }
    profile = Profile.model_validate(sections)
    return [dev_questions(profile, SearchQA(profile), inputs, training=by) for by in sections]


def hops_of(questions):
    return Counter(one.extra["hops"] for one in questions)


def test_dev_questions_have_the_shares_of_heldout_ones(of_two_kinds):
    first, last = asked_by_both(of_two_kinds, 10, 15)
    assert (hops_of(first), hops_of(last)) == ({4: 2, 1: 8}, {4: 3, 1: 12})
    assert not {one.task_id for one in first} & {one.task_id for one in last}
    assert asked_by_both(of_two_kinds, 10, 15) == [first, last]


def test_a_rare_kind_is_shared_by_both_trainings(of_two_kinds):
    first, last = asked_by_both(of_two_kinds, 20, 20)
    assert (hops_of(first), hops_of(last)) == ({4: 3, 1: 17}, {4: 3, 1: 17})
    assert not {one.task_id for one in first} & {one.task_id for one in last}


def test_kinds_that_are_not_held_out_fill_up(of_two_kinds):
    heldout = [task("heldout", n, "Odo", 4) for n in range(10)]
    write_tasks(of_two_kinds["accepted"] / "tasks" / "heldout.jsonl", heldout)
    first, last = asked_by_both(of_two_kinds, 8, 40)
    assert (hops_of(first), hops_of(last)) == ({4: 6, 1: 2}, {4: 6, 1: 34})


@pytest.mark.parametrize(("count", "points"), [(100, None), (99, 5), (60, 6), (4, 25), (0, 50)])
def test_too_few_dev_questions_are_said(count, points):
    line = few_questions_line(count, "training.dev_questions")
    if points is None:
        assert line is None
    else:
        assert f"{count} dev questions" in line
        assert f"up to {points} points" in line
        assert "training.dev_questions" in line


def test_both_trainings_draw_worlds_of_their_own(inputs):
    first, last = (asked(inputs, count=6, by=one, **OWN) for one in ("warm_start", "training"))
    assert first[:3] == last[:3] == DEV
    assert first[3:] != last[3:]

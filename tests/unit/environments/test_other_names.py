import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.config import Profile, SearchConfig
from espalier.environments.text_index import TextIndex
from espalier.records import FinalAnswer, Message, Task, TaskMetadata, ToolCall, ToolCalls, Verifier
from espalier.records.knowledge import Document
from espalier_search.knowledge.search import NO_RESULTS, SearchTool
from espalier_search.search_qa import SearchQA, family, search_environments
from espalier_search.search_qa.other_names import OtherNames, WorldMaker, names_of

DOCUMENTS = [
    Document("d1", "Lande Selfil", ("Lande Selfil was born in Brersten.",), "train"),
    Document(
        "d2", "Brersten", ("The river of Brersten is the Matrum.", "It trades in salt."), "train"
    ),
    Document("d3", "O'Fusel Works", ("The founder of O'Fusel Works is Lande Selfil.",), "train"),
]
TITLES = [document.title for document in DOCUMENTS]
TASK = Task(
    task_id="train-1",
    prompt=(Message(role="user", content="Which river has the town of Lande Selfil?"),),
    environment="search_qa",
    arguments={"index": "train"},
    verifier=Verifier(kind="exact_match", gold=("Matrum",)),
    metadata=TaskMetadata(
        split="train",
        source="webshaper",
        extra={"entities": ["Lande Selfil", "Brersten", "Matrum"]},
    ),
)


@pytest.fixture(scope="module")
def environments():
    search = SearchTool(DOCUMENTS, TextIndex.build(DOCUMENTS), SearchConfig())
    return search_environments(search, SearchQA(Profile()))


def world(seed=0, share=1.0, task=TASK):
    return WorldMaker(TITLES, share)(task, random.Random(seed))


def searched(environment, query):
    call = ToolCall(name="search", arguments={"query": query})
    return environment.step(ToolCalls((call,))).messages[0].content


def test_a_world_is_played_under_its_names_alone(environments):
    task = world()
    person, town, river = (task.arguments["names"][name] for name in task.extra["entities"])
    assert len({person, town, river, *TITLES, "Matrum"}) == 7
    assert task.question == f"Which river has the town of {person}?"
    environment = environments(task)
    environment.reset(task)
    assert f"{person} was born in {town}." in searched(environment, f"{person} born in")
    found = searched(environment, f"{town.lower()} river")
    assert found.startswith(f"{town} | The river of {town} is the {river}.")
    assert searched(environment, "Brersten") == NO_RESULTS, "the real names find nothing"
    environment.step(FinalAnswer(river))
    assert environment.score()["outcome"] == 1
    environment = environments(task)
    environment.reset(task)
    environment.step(FinalAnswer("Matrum"))
    assert environment.score()["outcome"] == 0


def test_a_task_without_a_world_is_played_as_it_is(environments):
    for names in ({}, {"names": None}, {"names": 3}, {"names": ["x"]}):
        task = TASK.model_copy(update={"arguments": {**TASK.arguments, **names}})
        assert names_of(task) is None
    environment = environments(TASK)
    environment.reset(TASK)
    assert "Brersten" in searched(environment, "Lande Selfil born in")


def test_each_draw_makes_another_world_and_keeps_the_id():
    first, second = world(1), world(2)
    assert first.question != second.question
    assert world(1) == first
    assert {first.task_id, second.task_id} == {TASK.task_id}
    assert Task.model_validate_json(first.model_dump_json()) == first


def test_names_become_others_in_the_asked_share():
    others = [len(world(seed, share=0.5).arguments["names"]) for seed in range(200)]
    assert sum(others) == pytest.approx(200 * 4 / 2, abs=40)
    same = world(share=0.0)
    assert (same.prompt, same.verifier) == (TASK.prompt, TASK.verifier)


def test_without_a_route_the_answers_are_names():
    metadata = TaskMetadata(split="train", source="own_questions")
    verifier = Verifier(kind="exact_match", gold=("salt", "the salt"))
    own = TASK.model_copy(update={"metadata": metadata, "verifier": verifier})
    task = world(task=own)
    assert set(task.arguments["names"]) == {*TITLES, "salt", "the salt"}
    assert task.verifier.gold[0] == task.arguments["names"]["salt"]


@given(st.lists(st.sampled_from([*TITLES, "Matrum", "salt", "birth year"]), min_size=1))
def test_what_is_shown_is_understood(parts):
    names = names_of(world())
    text = " | ".join(parts)
    assert names.meant(names.shown(text)) == text


NAMES = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Zs"]), max_size=12)


@given(st.dictionaries(NAMES, NAMES, max_size=6), NAMES)
def test_any_names_and_queries_are_exchanged(others, text):
    names = OtherNames(others)
    assert isinstance(names.meant(names.shown(text)), str)


@pytest.mark.parametrize(("times", "is_renamed"), [(333, True), (334, False)])
def test_worlds_are_made_of_few_titles(times, is_renamed, tmp_path, monkeypatch):
    monkeypatch.setattr(family, "load_documents", lambda path: DOCUMENTS * times)
    renaming = SearchQA(Profile()).task_renaming(tmp_path, 0.6)
    assert (renaming is not None) == is_renamed

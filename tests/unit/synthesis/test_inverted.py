"""Inverted questions over a user's triples: people, firms and towns, with years and numbers."""

import json
import random
import re
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from espalier.config import KnowledgeConfig, Profile
from espalier.environments import family_of
from espalier.environments.demonstrations import Rejected
from espalier.environments.funnel import Funnel
from espalier.records import NullTracker, read_tasks
from espalier.records.knowledge import Entity, KnowledgeGraph, Relation, Triple
from espalier.records.trajectory import read_trajectories
from espalier.stages import ingest
from espalier.stages import synthesize as stage
from espalier_search.knowledge.search import SearchTool
from espalier_search.synthesis.inverted.clues import Clue, FactIndex, Span, number_of, span_of
from espalier_search.synthesis.inverted.drawing import InvertedQuestions
from espalier_search.synthesis.inverted.teaching import ClueRoute, ClueTeacher
from espalier_search.synthesis.questions import FormalQuestions

SPLITS = ("train", "dev", "heldout")
SYLLABLES = ("ba", "do", "fi", "gu", "ka", "le", "mo", "nu", "pa", "ri", "so", "tu", "ve", "zo")
SETTINGS = {"share": 1.0, "max_lines": 5}


def _names(rng, count, ending):
    found = set()
    while len(found) < count:
        found.add("".join(rng.choices(SYLLABLES, k=3)).title() + ending)
    return sorted(found)


def _rows(rng):
    towns, firms, people = _names(rng, 6, "ton"), _names(rng, 24, "corp"), _names(rng, 240, "")
    trades = ["steel", "paper", "cloth", "glass"]
    for town in towns:
        population = f"{rng.randrange(2, 90)},{rng.randrange(1000):03d}"
        yield town, "town", "population", population, "count"
    for firm in firms:
        yield firm, "firm", "industry", rng.choice(trades), "industry"
        yield firm, "firm", "founded", str(rng.randrange(1950, 1990)), "year"
        yield firm, "firm", "seat", rng.choice(towns), "town"
    for person in people:
        yield person, "person", "born", str(rng.randrange(1930, 1990)), "year"
        yield person, "person", "home", rng.choice(towns), "town"
        for firm in rng.sample(firms, rng.choice((1, 1, 2))):
            yield person, "person", "employer", firm, "firm"


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    (folder / "texts").mkdir()
    (folder / "texts" / "note.md").write_text("# Note\n\nPeople, firms and towns.\n")
    keys = ("subject", "subject_type", "relation", "object", "object_type")
    rows = [dict(zip(keys, row, strict=True)) for row in _rows(random.Random(3))]
    (folder / "t.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    given = {
        "seed": 5,
        "search": {"top_k": 6, "snippet_lines": 3, "max_observation_words": 160},
        "episode": {"max_turns": 9, "max_tokens": 900},
        "synthesis": {
            "train_tasks": 90, "dev_tasks": 12, "heldout_tasks": 30, "trajectories": 12,
            "inverted": SETTINGS,
        },
        "training": {"dev_questions": 4}, "warm_start": {"dev_questions": 4},
        "curriculum": {"candidates": 40},
    }  # fmt: skip
    knowledge = KnowledgeConfig(source="folder", path=folder / "texts", triples=folder / "t.jsonl")
    return Profile.model_validate({**given, "knowledge": knowledge})


@pytest.fixture(scope="module")
def knowledge(profile, tmp_path_factory):
    out = tmp_path_factory.mktemp("knowledge") / "k"
    ingest.run(profile, {}, out, NullTracker())
    return out


@pytest.fixture(scope="module")
def graph(knowledge):
    return KnowledgeGraph.load(knowledge)


@pytest.fixture(scope="module")
def drawn(profile, knowledge, graph):
    """Inverted questions of every split, as drawn."""
    formal = FormalQuestions(profile, knowledge, graph, Funnel())
    questions = InvertedQuestions(graph, profile.synthesis.inverted, profile.seed)
    return {split: questions.draw(split, 60, formal.world(split), Funnel()) for split in SPLITS}


@pytest.fixture(scope="module")
def routed(profile, knowledge, graph):
    """The same as tasks with routes."""
    formal = FormalQuestions(profile, knowledge, graph, Funnel())
    return {split: formal.draw(split, 60) for split in SPLITS}


def _having(graph, clue):
    """Ids of people, firms and towns of which a clue is true, from the bare triples."""
    label_of = {name: relation.label for name, relation in graph.relations.items()}
    edges = defaultdict(set)
    for subject, relation, reached in graph.triples():
        edges[label_of[relation]].add((subject, reached))

    def fits(reached):
        if isinstance(clue.value, str):
            return reached == clue.value
        number = float(graph.entities[reached].name.replace(",", ""))
        return clue.value.low <= number < clue.value.high

    first, *further = (edges[label] for label in clue.labels)
    if not further:
        return {subject for subject, reached in first if fits(reached)}
    middle = {subject for subject, reached in further[0] if fits(reached)}
    return {subject for subject, reached in first if reached in middle}


def _is_inverted(task):
    return task.extra["kind"] == "inverted"


def test_brute_force_finds_the_target_alone(drawn, graph):
    assert all(drawn[split] for split in SPLITS)
    for question in (q for split in SPLITS for q in drawn[split]):
        kind = graph.entities[question.target].kind
        alike = {e.entity_id for e in graph.entities.values() if e.kind == kind}
        held = [_having(graph, clue) & alike for clue in question.clues]
        assert set.intersection(*held) == {question.target}
        assert min(map(len, held)) >= 3, "a clue gives the answer away"
        for left_out in range(len(held)):
            rest = [one for place, one in enumerate(held) if place != left_out]
            assert set.intersection(*rest) != {question.target}, "a clue can be left out"


def test_every_question_obscures_a_value(drawn):
    clues = [clue for split in SPLITS for question in drawn[split] for clue in question.clues]
    assert any(isinstance(clue.value, Span) and clue.value.is_decade for clue in clues)
    assert any(len(clue.labels) == 2 for clue in clues)
    for question in (q for split in SPLITS for q in drawn[split]):
        assert any(clue.is_obscured for clue in question.clues)
        assert 2 <= len(question.clues) <= 4
        assert question.num_lines <= SETTINGS["max_lines"]


def test_no_split_shares_an_entity_or_a_question(drawn, graph):
    for split in SPLITS:
        for question in drawn[split]:
            found = {graph.entities[entity_id].split for entity_id in question.entities}
            assert found <= {split, "hub"}
            assert graph.entities[question.target].split == split
    texts = [question.canonical for split in SPLITS for question in drawn[split]]
    assert len(set(texts)) == len(texts)


def test_equal_seeds_draw_equal_questions(profile, knowledge, graph, routed):
    again = FormalQuestions(profile, knowledge, graph, Funnel()).draw("train", 60)
    assert [each.task for each in again] == [each.task for each in routed["train"]]


def test_questions_name_no_answer_no_year_and_no_way(drawn, routed, graph):
    by_query = {q.canonical: q for split in SPLITS for q in drawn[split]}
    for question in (q for split in SPLITS for q in routed[split] if _is_inverted(q.task)):
        task, formal = question.task, by_query[str(question.task.extra["query"])]
        hidden = {graph.entities[formal.target].name}
        for clue, reached in formal.witnesses:
            hidden |= {graph.entities[one].name for one in reached[:-1]}
            if isinstance(clue.value, Span):
                hidden.add(graph.entities[reached[-1]].name)
        named = {graph.entities[entity_id].name for entity_id in formal.named}
        for name in hidden - named:
            assert not re.search(rf"\b{name}\b(?!s)", task.question), task.question
        assert task.question.endswith("?")


def test_the_teacher_answers_from_what_it_has_read(profile, knowledge, routed):
    search = SearchTool.open(knowledge, "train", profile.search)
    teacher = ClueTeacher(search, profile.search.max_observation_words, 8)
    kept = wrong = 0
    for question in routed["train"]:
        assert isinstance(question.route, ClueRoute)
        found = teacher.demonstrate(question.task, question.route)
        if isinstance(found, Rejected):
            wrong += found.reason == "wrong_answer"
            continue
        kept += 1
        assert found.answer in question.task.verifier.gold
        assert len(found.tool_results) <= 8
        read = " ".join(result.content for result in found.tool_results)
        for clue in question.route.clues:
            if isinstance(clue.value, str):
                assert clue.value in read
    assert kept >= len(routed["train"]) // 4
    assert wrong == 0, "a name that has every fact must be the answer"


def test_a_run_has_inverted_tasks_in_every_split_and_demonstrations(profile, knowledge, tmp_path):
    stage.run(profile, {"knowledge": knowledge}, tmp_path / "s", NullTracker())
    family = family_of(profile)
    inverted = set()
    for split in SPLITS:
        tasks = read_tasks(tmp_path / "s" / "tasks" / f"{split}.jsonl")
        assert "inverted" in {family.report_groups(task)["kind"] for task in tasks}
        inverted |= {task.task_id for task in tasks if _is_inverted(task)}
    kept = read_trajectories(tmp_path / "s" / "trajectories.parquet")
    assert inverted & {trajectory.task_id for trajectory in kept}


@pytest.mark.parametrize(
    ("synthesis", "episode", "said"),
    [
        ({"inverted": {"share": 0.2, "max_lines": 6}}, {}, "turn"),
        ({"inverted": {"share": 0.6}, "expansion": {"share": 0.6}}, {}, "shares"),
    ],
)
def test_settings_that_cannot_be_met_are_refused(synthesis, episode, said):
    with pytest.raises(ValidationError, match=said):
        Profile.model_validate({"synthesis": synthesis, "episode": episode})


def test_what_leads_back_to_the_answer_is_counted():
    kinds = {"la": "city", "fresno": "city", "california": "state"}
    entities = [
        Entity(name, name, kind, hub=False, split="train", askable=True, document_id=name)
        for name, kind in kinds.items()
    ]
    state = Relation("state", "state", "city", "state", functional=True, phrasings=("of {x}",))
    largest = Relation(
        "largest", "largest city", "state", "city", functional=True, phrasings=("of {x}",)
    )
    rows = [("la", "state", "california"), ("fresno", "state", "california")]
    triples = [Triple(*row) for row in (*rows, ("california", "largest", "la"))]
    facts = FactIndex(KnowledgeGraph(entities, [state, largest], triples))
    # "the largest city of its state is la" is true of la, which so is a second answer
    assert facts.holders("city", Clue(("state", "largest city"), "la")) == {"la", "fresno"}
    assert facts.holders("city", Clue(("state",), "nowhere")) == frozenset()


def test_numbers_become_decades_or_ranges():
    for text, years, low, high in (
        ("1980", True, 1980, 1990),
        ("1,234,567", False, 1e6, 2e6),
        ("4.99", False, 2, 5),
        ("0", False, 0, 1),
    ):
        assert span_of(number_of(text), years=years) == Span(low, high, is_decade=years)


@given(st.floats(min_value=0, max_value=9e14, allow_nan=False).map(lambda x: f"{x:.6f}"))
def test_every_number_lies_in_its_own_range(text):
    number = number_of(text)
    span = span_of(number, years=False)
    assert span.low <= number < span.high


@given(st.text(max_size=40))
def test_any_text_is_a_number_or_none(text):
    number = number_of(text)
    assert number is None or number >= 0
    assert number is not None or not Span(0, 1e15, is_decade=False).holds(text)

import asyncio
import random
from collections import Counter

import pytest

from espalier.completions import ModelRefusal
from espalier.config import ExpansionConfig, Profile
from espalier.environments.demonstrations import Rejected
from espalier.environments.funnel import Funnel
from espalier_search.knowledge.search import SearchTool
from espalier_search.synthesis.questions import FormalQuestions
from espalier_search.synthesis.task_making import GROWN, formal_question
from espalier_search.synthesis.teacher import RouteTeacher, route_of
from espalier_search.synthesis.webshaper.candidate import CandidateQuestion
from espalier_search.synthesis.webshaper.expansion import (
    Expander,
    ExpanderTools,
    QuestionGrower,
    RandomWalks,
)
from espalier_search.synthesis.webshaper.expansion_calls import (
    Action,
    EmbeddedExpander,
    FoundFacts,
    GiveUp,
    Search,
    Validate,
)
from espalier_search.synthesis.webshaper.generator import Generator
from espalier_search.synthesis.webshaper.query import (
    Constant,
    Projection,
    canonical,
    constants,
    evaluate,
    hops,
)
from espalier_search.synthesis.webshaper.rules import RULES, broken_rule
from espalier_search.synthesis.webshaper.steps import Steps

from .conftest import PROFILE

CONFIG = ExpansionConfig(share=0.5)


class Scripts:
    """A model that writes what the test tells it, the last of it for ever."""

    def __init__(self, *calls):
        self.calls = list(calls)
        self.told = []

    async def answer(self, request):
        self.told.append(request.material)
        call = self.calls.pop(0) if len(self.calls) > 1 else self.calls[0]
        return call if isinstance(call, ModelRefusal) else Action(thought="so", call=call)


def _grower(model, graph, config=CONFIG, seed=0):
    return QuestionGrower(model, Generator(graph, {}, 0), config, seed=seed, in_flight=1)


async def _some(growing, steps, world, count, funnel=None, hopeful=lambda _: True):
    questions = growing.questions(steps, world, hopeful, funnel or Funnel())
    found = []
    async for candidate in questions:
        found.append(candidate)
        if len(found) == count:
            break
    await questions.aclose()
    return found


@pytest.fixture(scope="module")
def steps(graph):
    return Steps(graph, "train")


@pytest.fixture(scope="module")
def tools(steps, worlds):
    return ExpanderTools(steps, worlds["train"], broken_rule, seed=0)


@pytest.fixture(scope="module")
def grown(graph, worlds, steps):
    funnel = Funnel()
    growing = _grower(EmbeddedExpander(0), graph)
    return asyncio.run(_some(growing, steps, worlds["train"], 150, funnel)), funnel


@pytest.fixture(scope="module")
def lyon(graph, worlds):
    """The currency of the country of a city, and the ids of country and city."""
    world = worlds["train"]
    for triple in graph.triples():
        if triple.relation == "capital_of" and graph.entities[triple.subject].split == "train":
            query = Projection("currency", Constant(triple.object))
            if len(evaluate(query, graph)) == 1 and graph.entities[triple.object].askable:
                return CandidateQuestion(query, world), triple.object, triple.subject
    raise AssertionError("the graph has a capital")


def test_grown_questions_keep_every_rule_and_the_limit_of_searches(grown, graph):
    questions, funnel = grown
    assert len(questions) == 150
    assert len({canonical(question.query) for question in questions}) == 150
    for question in questions:
        assert [rule.__name__ for rule in RULES if rule(question)] == []
        assert hops(question.query) >= 2
        assert len(route_of(question.query, graph).labels) <= CONFIG.max_searches
    assert funnel.counts("train.grown")["accepted"] == 150


def test_some_questions_grow_by_joins_and_unions(graph, worlds, steps):
    config = ExpansionConfig(share=0.5, layers=3, max_searches=8)
    growing = _grower(EmbeddedExpander(1), graph, config, seed=1)
    questions = asyncio.run(_some(growing, steps, worlds["train"], 300))
    shapes = Counter(len(constants(question.query)) for question in questions)
    assert shapes[1] > shapes[2] > 0
    assert shapes[3] > 0


def test_only_seeds_that_a_rollout_answers_are_grown(graph, worlds, steps):
    funnel, hopeful = Funnel(), iter([True] * 40)
    growing = _grower(EmbeddedExpander(0), graph)
    assert asyncio.run(
        _some(growing, steps, worlds["train"], 100, funnel, lambda _: next(hopeful, False))
    )
    assert funnel.counts("train.seeds")["kept"] == 40
    assert funnel.counts("train.seeds")["no_rollout_right"] > 0


def test_the_endless_walk_stops_where_nothing_new_comes(graph, worlds):
    lonely = Steps(graph, "train")
    lonely.single = {name: {} for name in lonely.single}
    assert list(RandomWalks(lonely, random.Random(0)).queries(1, 2)) == []
    narrow = Steps(graph, "train")
    narrow.single = {name: dict(list(step.items())[:1]) for name, step in narrow.single.items()}
    growing = _grower(Scripts(GiveUp()), graph)
    assert asyncio.run(_some(growing, narrow, worlds["train"], 1)) == []


def test_every_layer_replaces_what_the_layer_before_brought_in(lyon):
    question, country, capital = lyon
    world = question.world
    model = Scripts(
        Validate(entries=((f"C@{question.name(capital)}", "capital_of", "?T"),)), GiveUp()
    )
    judged_fair = ExpanderTools(Steps(world.graph, "train"), world, lambda _: None, seed=0)
    expander = Expander(model, judged_fair, CONFIG, Funnel(), "train.expansion")
    grown = asyncio.run(expander.grow(question))
    assert grown.query == Projection("currency", Projection("capital_of", Constant(capital)))
    assert grown.answer == question.answer
    assert [told.leaf for told in model.told] == [question.name(country), question.name(capital)]


@pytest.mark.parametrize(
    ("call", "told", "reason"),
    [
        (Search(name="Atlantis"), CONFIG.max_actions, "out_of_actions"),
        (ModelRefusal("truncated"), 1, "model_truncated"),
    ],
)
def test_a_model_without_a_submission_grows_nothing(lyon, tools, call, told, reason):
    funnel, model = Funnel(), Scripts(call)
    expander = Expander(model, tools, CONFIG, funnel, "train.expansion")
    assert asyncio.run(expander.grow(lyon[0])) is None
    assert len(model.told) == told
    assert [turn.result for turn in model.told[-1].turns] == [FoundFacts(facts=())] * (told - 1)
    assert funnel.counts("train.expansion") == {reason: 1}


def test_each_reason_for_refusing_a_sub_question_is_told_apart(lyon, tools):
    question, country, capital = lyon
    city, name = question.name(capital), question.name(country)

    def verdict(*entries):
        return tools.validate(entries, question.query, country)

    assert verdict(("C@x", "country", "y", "z")) == "entry_not_three_items"
    assert verdict(("C@x", "country", "y")) == "unmarked_entity"
    assert verdict(("C@x", "r", "C@y"), ("C@x", "r", "?T")) == "constant_constant_edge"
    assert verdict(("C@Atlantis", "country", "?T")) == "unknown_name_or_direction"
    assert verdict(("?T", "capital", f"C@{city}")) == "unknown_name_or_direction"
    assert verdict((f"C@{city}", "mayor", "?T")) == "unknown_relation"
    assert verdict((f"C@{city}", "time_zone", "?T")) == "type_mismatch"
    assert verdict((f"C@{name}", "capital", "V@X"), ("V@X", "country", "?T")) == "names_the_leaf"
    assert verdict(("C@Euro", "used_in", "?T")) == "other_answers"
    assert verdict() == "no_entry"


def test_search_shows_no_fact_of_another_split(tools, graph, steps):
    hidden = {e.name for e in graph.entities.values() if e.split in ("dev", "heldout")}
    shared = {e.name for e in graph.entities.values() if e.split in ("train", "hub")}
    subjects = {
        fact.subject
        for entity in list(graph.entities.values())[:400]
        for fact in tools.search(entity.name).facts
    }
    assert subjects
    assert not subjects & (hidden - shared)


def _hostile_entries(rng, names, relations):
    item = ["?T", "?", "V@X", "V@Y", "C@", "", "C@{a | b}"]
    item += [f"C@{name}" for name in rng.sample(names, 3)]
    width = 3 if rng.random() < 0.95 else rng.randrange(5)
    rows = []
    for _ in range(rng.randrange(5)):
        row = [rng.choice(item) for _ in range(width)]
        if width == 3:
            row[1] = rng.choice([*relations, "is", "is one of the union", "mayor", ""])
        rows.append(tuple(row))
    return rows


def test_no_submission_crashes_or_is_accepted_without_proof(lyon, tools, graph):
    question, country, _ = lyon
    rng = random.Random(0)
    names = [e.name for e in graph.entities.values() if e.askable][:4000]
    names += [fact.subject for fact in tools.search(question.name(country)).facts] * 40
    relations = [r.name for r in graph.relations.values() if r.object_kind == "country"]
    accepted = 0
    for _ in range(10_000):
        verdict = tools.validate(_hostile_entries(rng, names, relations), question.query, country)
        if isinstance(verdict, CandidateQuestion):
            accepted += 1
            assert evaluate(verdict.query, graph) == {question.answer}
            assert country not in constants(verdict.query)
            assert broken_rule(verdict) is None
    assert accepted > 0


def test_equal_seeds_grow_equal_questions(grown, graph, worlds, steps):
    growing = _grower(EmbeddedExpander(0), graph)
    again = asyncio.run(_some(growing, steps, worlds["train"], 20))
    texts = [canonical(question.query) for question in again]
    assert texts == [canonical(question.query) for question in grown[0][:20]]


def test_grown_questions_replace_a_share_of_drawn_ones(knowledge_dir, graph):
    expansion = ExpansionConfig(share=0.25)
    synthesis = PROFILE.synthesis.model_copy(update={"expansion": expansion})
    profile = PROFILE.model_copy(update={"synthesis": synthesis})
    questions = FormalQuestions(profile, knowledge_dir, graph, Funnel()).draw("train", 80)
    sources = Counter(question.task.metadata.source for question in questions)
    assert sources == {"expansion": 20, "webshaper": 60}
    assert len({question.task.extra["query"] for question in questions}) == 80


def test_the_teacher_answers_grown_questions_through_the_real_tool(grown, knowledge_dir):
    search = SearchTool.open(knowledge_dir, "train", PROFILE.search)
    teacher = RouteTeacher(search, PROFILE.search.max_observation_words, 0)
    questions = [formal_question(candidate, "train", 0, GROWN) for candidate in grown[0]]
    outcomes = [teacher.demonstrate(question.task, question.route) for question in questions]
    lost = [outcome for outcome in outcomes if isinstance(outcome, Rejected)]
    assert len(lost) < len(outcomes) // 10


def test_a_profile_with_too_few_turns_for_questions_is_refused():
    tables = {"expansion": {"share": 0.1, "max_searches": 6}}
    with pytest.raises(ValueError, match="max_searches=6"):
        Profile.model_validate({"synthesis": tables})
    Profile.model_validate({"synthesis": tables, "episode": {"max_turns": 7}})

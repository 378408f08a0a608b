import asyncio
import random
from collections import Counter

import pytest

from espalier.completions import EndpointModel, ModelRefusal
from espalier.config import EndpointConfig, ExpansionConfig, Profile
from espalier.environments.funnel import Funnel
from espalier_search.synthesis.questions import FormalQuestions
from espalier_search.synthesis.task_making import GROWN, formal_question
from espalier_search.synthesis.teacher import route_of
from espalier_search.synthesis.webshaper.candidate import CandidateQuestion
from espalier_search.synthesis.webshaper.expansion import (
    Expander,
    ExpanderTools,
    QuestionGrower,
    RandomWalks,
    with_sub_question,
)
from espalier_search.synthesis.webshaper.expansion_calls import (
    Action,
    EmbeddedExpander,
    ExpanderTurn,
    ExpansionState,
    Fact,
    FoundFacts,
    GiveUp,
    Search,
    SubQuestionVerdict,
    Summarize,
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
from tests.fakes.endpoint_double import EndpointDouble, Scripted, completion
from tests.fakes.endpoint_double import running_double as running

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


async def _some(questions, count):
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
    growing = QuestionGrower(
        EmbeddedExpander(0), Generator(graph, {}, 0), CONFIG, seed=0, in_flight=1
    )
    world = worlds["train"]
    return asyncio.run(_some(growing.questions(steps, world, lambda _: True, funnel), 150)), funnel


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
    growing = QuestionGrower(
        EmbeddedExpander(1), Generator(graph, {}, 0), config, seed=1, in_flight=1
    )
    questions = growing.questions(steps, worlds["train"], lambda _: True, Funnel())
    shapes = Counter(len(constants(q.query)) for q in asyncio.run(_some(questions, 300)))
    assert shapes[1] > shapes[2] > 0
    assert shapes[3] > 0


def test_equal_seeds_grow_equal_questions(grown, graph, worlds, steps):
    growing = QuestionGrower(
        EmbeddedExpander(0), Generator(graph, {}, 0), CONFIG, seed=0, in_flight=1
    )
    again = growing.questions(steps, worlds["train"], lambda _: True, Funnel())
    texts = [canonical(question.query) for question in asyncio.run(_some(again, 20))]
    assert texts == [canonical(question.query) for question in grown[0][:20]]


def test_only_seeds_that_a_rollout_answers_are_grown(graph, worlds, steps):
    funnel = Funnel()
    growing = QuestionGrower(
        EmbeddedExpander(0), Generator(graph, {}, 0), CONFIG, seed=0, in_flight=1
    )
    hopeful = iter([True] * 40)
    questions = growing.questions(steps, worlds["train"], lambda _: next(hopeful, False), funnel)
    assert asyncio.run(_some(questions, 100))
    assert funnel.counts("train.seeds")["kept"] == 40
    assert funnel.counts("train.seeds")["no_rollout_right"] > 0


def test_the_endless_walk_stops_where_nothing_new_comes(graph, worlds):
    lonely = Steps(graph, "train")
    lonely.single = {name: {} for name in lonely.single}
    assert list(RandomWalks(lonely, random.Random(0)).queries(1, 2)) == []
    narrow = Steps(graph, "train")
    narrow.single = {name: dict(list(step.items())[:1]) for name, step in narrow.single.items()}
    growing = QuestionGrower(
        Scripts(GiveUp()), Generator(graph, {}, 0), CONFIG, seed=0, in_flight=1
    )
    questions = growing.questions(narrow, worlds["train"], lambda _: True, Funnel())
    assert asyncio.run(_some(questions, 1)) == []


def test_a_walk_never_turns_back_and_has_the_requested_length(steps, graph):
    walks = RandomWalks(steps, random.Random(3)).queries(2, 3)
    lengths = Counter()
    for _ in range(200):
        query = next(walks)
        lengths[hops(query)] += 1
        assert "capital_of(capital(" not in canonical(query)
    assert set(lengths) == {2, 3}


def test_every_layer_replaces_what_the_layer_before_brought_in(lyon, tools):
    question, country, capital = lyon
    world = question.world
    lists_it = Validate(entries=((f"C@{question.name(capital)}", "capital_of", "?T"),))
    model = Scripts(lists_it, GiveUp())
    expander = Expander(model, tools, CONFIG, Funnel(), "train.expansion")
    judged_fair = ExpanderTools(Steps(world.graph, "train"), world, lambda _: None, seed=0)
    expander = Expander(model, judged_fair, CONFIG, Funnel(), "train.expansion")
    grown = asyncio.run(expander.grow(question))
    assert grown.query == Projection("currency", Projection("capital_of", Constant(capital)))
    assert grown.answer == question.answer
    assert [told.leaf for told in model.told] == [question.name(country), question.name(capital)]


def test_an_agent_that_never_submits_runs_out_of_actions(lyon, tools):
    funnel = Funnel()
    model = Scripts(Search(name="Atlantis"))
    expander = Expander(model, tools, CONFIG, funnel, "train.expansion")
    assert asyncio.run(expander.grow(lyon[0])) is None
    assert len(model.told) == CONFIG.max_actions
    assert len(model.told[-1].turns) == CONFIG.max_actions - 1
    assert model.told[-1].turns[0].result == FoundFacts(facts=())
    assert funnel.counts("train.expansion") == {"out_of_actions": 1}


def test_a_model_that_refuses_leaves_the_question_as_it_is(lyon, tools):
    funnel = Funnel()
    expander = Expander(
        Scripts(ModelRefusal("truncated")), tools, CONFIG, funnel, "train.expansion"
    )
    assert asyncio.run(expander.grow(lyon[0])) is None
    assert funnel.counts("train.expansion") == {"model_truncated": 1}


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
    assert verdict((f"C@{city}", "is", "?T")) == "unknown_relation"
    assert verdict((f"C@{city}", "time_zone", "?T")) == "type_mismatch"
    assert verdict((f"C@{name}", "capital", "V@X"), ("V@X", "country", "?T")) == "names_the_leaf"
    assert verdict(("C@Euro", "used_in", "?T")) == "other_answers"
    assert verdict() == "no_entry"


def test_summaries_are_unions_of_what_each_member_has(tools, graph):
    askable = [e for e in graph.entities.values() if e.kind == "country" and e.askable]
    lists = [(e.name, set(graph.objects("neighbours", e.entity_id))) for e in askable]
    (first, of_first), (second, of_second) = [row for row in lists if 1 < len(row[1]) < 9][:2]
    expected = {graph.entities[entity_id].name for entity_id in of_first | of_second}
    found = tools.summarize("neighbours", (first, second, "Atlantis")).objects
    assert set(found) == expected
    assert tools.summarize("mayor", (first,)).objects == ()


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


def test_replacing_a_leaf_leaves_sets_and_other_constants_alone(lyon):
    _, country, capital = lyon
    other = Projection("capital", Constant("elsewhere"))
    assert with_sub_question(other, country, Constant(capital)) == other


def _hostile_entries(rng, names, relations):
    item = [
        "?T",
        "?",
        "V@X",
        "V@Y",
        "C@",
        "",
        "C@{a | b}",
        *(f"C@{n}" for n in rng.sample(names, 3)),
    ]
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


class ThinkingDouble(EndpointDouble):
    """Answers every request as the embedded expander would."""

    @property
    def usual(self):
        growth = ExpansionState.model_validate_json(self.seen[-1][1]["messages"][1]["content"])
        request = type("R", (), {"material": growth, "answer": Action, "sample": 0, "call": ""})
        action = asyncio.run(EmbeddedExpander(0).answer(request))
        return Scripted(completion(action.model_dump_json()))

    @usual.setter
    def usual(self, _):
        pass


def test_a_server_grows_what_the_embedded_expander_grows(grown, graph, worlds, steps, monkeypatch):
    monkeypatch.setattr("tests.fakes.endpoint_double.EndpointDouble", ThinkingDouble)

    async def session(url):
        async with EndpointModel(EndpointConfig(url=url, model="small")) as model:
            growing = QuestionGrower(model, Generator(graph, {}, 0), CONFIG, seed=0, in_flight=1)
            world = worlds["train"]
            return await _some(growing.questions(steps, world, lambda _: True, Funnel()), 3)

    with running() as double:
        found = asyncio.run(session(double.url))
    texts = [canonical(question.query) for question in found]
    assert texts == [canonical(question.query) for question in grown[0][:3]]


def test_the_embedded_expander_summarizes_a_union_before_submitting_it():
    facts = tuple(
        Fact(subject=name, relation="used_in", objects=objects)
        for name, objects in [
            ("A", ("leaf", "x")), ("B", ("leaf", "y")), ("C", ("leaf", "z")), ("D", ("leaf", "w")),
        ]
    )  # fmt: skip
    growth = ExpansionState(
        question=(("C@leaf", "r", "?T"),), leaf="leaf", leaf_kind="k", relations=()
    )
    told = ExpanderTurn(
        action=Action(thought="so", call=Search(name="leaf")), result=FoundFacts(facts=facts)
    )
    tools_used = set()
    for seed in range(40):
        turns, calls = (told,), []
        while not calls or not isinstance(calls[-1], GiveUp):
            request = type(
                "R", (), {"answer": Action, "sample": 0, "call": "",
                          "material": growth.model_copy(update={"turns": turns})},
            )  # fmt: skip
            call = asyncio.run(EmbeddedExpander(seed).answer(request)).call
            calls.append(call)
            refused = SubQuestionVerdict(accepted=False, reason="no")
            result = refused if isinstance(call, Validate) else FoundFacts(facts=())
            if isinstance(call, Summarize):
                from espalier_search.synthesis.webshaper.expansion_calls import UnionMembers

                result = UnionMembers(objects=("leaf",))
                tools_used.add(call.names)
            turns = (*turns, ExpanderTurn(action=Action(thought="so", call=call), result=result))
        submitted = [call for call in calls if isinstance(call, Validate)]
        assert len({call.entries for call in submitted}) == len(submitted)
    assert tools_used


def test_grown_questions_replace_a_share_of_drawn_ones(knowledge_dir, graph):
    expansion = ExpansionConfig(share=0.25)
    synthesis = PROFILE.synthesis.model_copy(update={"expansion": expansion})
    profile = PROFILE.model_copy(update={"synthesis": synthesis})
    questions = FormalQuestions(profile, knowledge_dir, graph, Funnel()).draw("train", 80)
    sources = Counter(question.task.metadata.source for question in questions)
    assert sources == {"expansion": 20, "webshaper": 60}
    assert len({question.task.extra["query"] for question in questions}) == 80


def test_the_teacher_answers_grown_questions_through_the_real_tool(grown, knowledge_dir):
    from espalier.environments.demonstrations import Rejected
    from espalier_search.knowledge.search import SearchTool
    from espalier_search.synthesis.teacher import RouteTeacher

    search = SearchTool.open(knowledge_dir, "train", PROFILE.search)
    teacher = RouteTeacher(search, PROFILE.search.max_observation_words, 0)
    outcomes = []
    for candidate in grown[0]:
        question = formal_question(candidate, "train", 0, GROWN)
        outcomes.append(teacher.demonstrate(question.task, question.route))
    lost = [outcome for outcome in outcomes if isinstance(outcome, Rejected)]
    assert len(lost) < len(outcomes) // 10


def test_a_profile_with_too_few_turns_for_questions_is_refused():
    tables = {"expansion": {"share": 0.1, "max_searches": 6}}
    with pytest.raises(ValueError, match=r"max_searches=6 .*max_turns=6"):
        Profile.model_validate({"synthesis": tables})
    Profile.model_validate({"synthesis": tables, "episode": {"max_turns": 7}})

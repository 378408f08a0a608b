import asyncio
import random

import pytest

from espalier.completions import ModelRefusal
from espalier.config import AgentTextsConfig
from espalier.environments.funnel import Funnel
from espalier.records.knowledge import (
    Document,
    Entity,
    KnowledgeGraph,
    Relation,
    Triple,
    load_documents,
)
from espalier_search.knowledge.search import documents_path
from espalier_search.synthesis.agent_texts.calls import (
    SEARCH,
    Claim,
    Judgement,
    KnowledgeInput,
    Plan,
    PlanInput,
    QuestionInput,
    guess_request,
    judge_request,
    plan_request,
    refine_request,
)
from espalier_search.synthesis.agent_texts.embedded import EmbeddedTeacher, with_mistake
from espalier_search.synthesis.agent_texts.first_order import (
    EntityMemories,
    Planner,
    Reasoner,
    date_in,
    unsupported,
)
from espalier_search.synthesis.agent_texts.schema import QuestionReader, Schema
from tests.factories.records import make_task

from . import tags


def _entity(name, kind):
    own_id = f"{kind}:{name}"
    return Entity(own_id, name, kind, hub=False, split="train", askable=True, document_id=own_id)


def _relation(label, subject, object_, *phrasings):
    name = label.replace(" ", "_")
    functional = label != "neighbours"
    return Relation(name, label, subject, object_, functional=functional, phrasings=phrasings)


@pytest.fixture(scope="module")
def small():
    """Two cities and two countries: Lyon in France, Turin in Italy."""
    relations = [
        _relation("country", "city", "country", "the country of {x}",
                  "the country where {x} lies"),
        _relation("capital", "country", "city", "the capital of {x}"),
        _relation("neighbours", "country", "country", "a neighbour of {x}",
                  "a country that borders {x}"),
        _relation("capital of", "city", "country", "the country whose capital is {x}",
                  "the country with {x} as its capital"),
    ]  # fmt: skip
    pairs = [("Lyon", "city"), ("Turin", "city"), ("France", "country"), ("Italy", "country")]
    entities = [_entity(name, kind) for name, kind in pairs]
    documents = [
        Document("city:Lyon", "Lyon", ("country: France", "population: 500,000"), "train"),
        Document("city:Turin", "Turin", ("country: Italy", "capital of: Italy"), "train"),
        Document("country:France", "France", ("capital: Lyon", "neighbours: Italy"), "train"),
        Document("country:Italy", "Italy", ("capital: Turin", "neighbours: France"), "train"),
    ]
    graph = KnowledgeGraph(entities, relations, [Triple("city:Lyon", "country", "country:France")])
    return Schema(graph, documents), documents


def teacher(schema, mistake_share=0.0):
    return EmbeddedTeacher(schema, mistake_share=mistake_share, seed=3)


def answered(model, request):
    return asyncio.run(model.answer(request))


def gathered(stream):
    async def collect():
        return [item async for item in stream]

    return asyncio.run(collect())


@pytest.mark.parametrize(
    ("question", "name", "labels"),
    [
        ("What is the country of Lyon?", "Lyon", ("country",)),
        ("Find the capital of a neighbour of the country where Lyon lies.", "Lyon",
         ("country", "neighbours", "capital")),
        ("Which country is the country with Turin as its capital?", "Turin", ("capital of",)),
        ("Name the population of Lyon.", "Lyon", ("population",)),
        ("Tell me both the country of Lyon and the population of Lyon.", "Lyon",
         ("country", "population")),
    ],
)  # fmt: skip
def test_a_question_is_read_phrase_by_phrase(small, question, name, labels):
    reading = QuestionReader(small[0]).read(question)
    assert (reading.name, reading.labels) == (name, labels)


@pytest.mark.parametrize(
    "question",
    ["", "?", "Who built Lyon?", "What is the capital of Lyon?", "Name the capital of ."],
)
def test_a_question_outside_the_schema_is_not_read(small, question):
    assert QuestionReader(small[0]).read(question) is None


@pytest.mark.slow
def test_every_training_chain_is_read_as_it_was_asked(candidates, knowledge_dir, graph):
    from espalier_search.synthesis.task_making import formal_question

    reader = QuestionReader(Schema(graph, load_documents(documents_path(knowledge_dir, "train"))))
    questions = [formal_question(candidate, "train", 5) for candidate in candidates["train"]]
    chains = [q for q in questions if q.task.extra["kind"] == "chain"]
    read = [reader.read(question.task.question) for question in chains]
    right = sum(
        reading is not None and reading.labels == question.route.labels
        for reading, question in zip(read, chains, strict=True)
    )
    assert len(chains) > 200
    assert right / len(chains) > 0.95


def test_a_plan_searches_the_first_line_and_names_the_rest(small):
    told = QuestionInput(question="Find the capital of the country of Lyon.")
    plan = answered(teacher(small[0]), plan_request(told))
    assert plan == Plan(analysis="country , capital", tool="search", query="Lyon country")


def test_a_teacher_declines_to_plan_without_a_search_tool(small):
    told = QuestionInput(question="Find the capital of France.", tools=())
    assert answered(teacher(small[0]), plan_request(told)).reason == "refused"


def test_equal_requests_have_equal_answers_and_samples_differ(small):
    model = teacher(small[0], mistake_share=1.0)
    told = QuestionInput(question="Find the capital of a neighbour of the country of Lyon.")
    plans = [answered(model, plan_request(told, sample)) for sample in range(12)]
    assert plans == [answered(model, plan_request(told, sample)) for sample in range(12)]
    assert len(set(plans)) > 4


def test_a_mistaken_plan_is_another_plan(small):
    labels = ("country", "neighbours", "capital")
    made = [with_mistake("Lyon", labels, small[0], random.Random(seed)) for seed in range(200)]
    assert sum(plan != ("Lyon", labels) for plan in made) > 180
    assert {len(found) for _, found in made} == {2, 3}


@pytest.mark.parametrize(
    ("analysis", "query", "likely"),
    [
        ("country , capital", "Lyon country", True),
        ("Country , Capital", "lyon country", True),
        ("country", "Lyon country", False),
        ("capital , country", "Lyon capital", False),
        ("country , neighbours", "Lyon country", False),
        ("country , capital", "Lyon capital", False),
        ("country , capital", "Turin country", False),
        ("country , capital", "Lyno country", False),
        ("find", "capital country lyon", False),
    ],
)
def test_the_judge_tells_plans_by_the_words_of_the_question(small, analysis, query, likely):
    plan = Plan(analysis=analysis, tool="search", query=query)
    told = PlanInput(
        question="What is the capital of the country of Lyon?", tools=(SEARCH,), plan=plan
    )
    judgement = answered(teacher(small[0]), judge_request(told))
    assert judgement.likely is likely, judgement.reason


def test_the_judge_is_told_neither_the_answer_nor_a_result():
    assert set(PlanInput.model_fields) == {"question", "tools", "plan"}
    assert set(Plan.model_fields) == {"analysis", "tool", "query"}


def test_a_plan_with_an_unknown_tool_is_judged_unlikely(small):
    plan = Plan(analysis="country", tool="map", query="Lyon country")
    told = PlanInput(question="What is the country of Lyon?", tools=(SEARCH,), plan=plan)
    assert not answered(teacher(small[0]), judge_request(told)).likely


@pytest.mark.parametrize(
    ("line", "date"),
    [("built in 1843", "1843"), ("on 1843-07-02 it", "1843-07-02"), ("1,843 people", ""), ("", "")],
)
def test_a_claim_carries_the_date_that_its_line_states(line, date):
    assert date_in(line) == date


def test_claims_are_grouped_by_entity_and_ordered_by_date():
    memories = EntityMemories()
    first = Document("a", "Ada", ("wrote notes in 1843", "born in 1815"), "train")
    again = Document("b", "ADA", ("wrote notes in 1843",), "train")
    for document in (first, again):
        claims = [Claim(entity=document.title, date=date_in(x), text=x) for x in document.lines]
        memories.add(document, claims)
    (memory,) = memories.all()
    assert [claim.date for claim in memory.claims] == ["1815", "1843"]
    assert memory.sources == ["a", "b"]


@pytest.mark.parametrize(
    ("claim", "invented"),
    [
        (Claim(entity="Ada", date="1843", text="wrote notes"), False),
        (Claim(entity="Babbage", text="wrote notes"), True),
        (Claim(entity="Ada", date="1844", text="wrote notes"), True),
        (Claim(entity="Ada", text="wrote 7 notes"), True),
    ],
)
def test_a_claim_that_the_document_lacks_is_unsupported(claim, invented):
    document = Document("a", "Ada", ("Ada wrote notes in 1843",), "train")
    assert unsupported(claim, document) is invented


def planned(model, documents, **fields):
    config = AgentTextsConfig(memories=len(documents), **fields)
    funnel = Funnel()
    texts = gathered(Planner(model, config, funnel, tags.write, in_flight=3).texts(documents, 1))
    return texts, funnel.counts("planning")


def test_a_memory_yields_a_question_in_every_possible_style(small):
    texts, counts = planned(teacher(small[0]), small[1])
    assert {text.style for text in texts} == {"retrieval", "numeric", "multi_hop", "synthesis"}
    assert counts["kept"] == len(texts)
    for text in texts:
        assert [piece.role for piece in text.pieces] == ["assistant"]
        assert text.pieces[0].content.startswith("<think>")
        assert text.sources


def test_plans_that_go_wrong_are_dropped_by_the_judge(small):
    texts, counts = planned(teacher(small[0], mistake_share=1.0), small[1] * 3)
    assert counts["judged_unlikely"] > len(texts)


def test_the_profile_limits_the_number_of_styles(small):
    texts, _ = planned(teacher(small[0]), small[1], questions_per_memory=1)
    assert {text.style for text in texts} == {"retrieval"}


class Sabotaged:
    """A teacher whose answers of one type are replaced."""

    def __init__(self, model, replaced, by):
        self._model, self._replaced, self._by = model, replaced, by
        self.asked = []

    async def answer(self, request):
        self.asked.append(request)
        if request.answer is self._replaced:
            return self._by
        return await self._model.answer(request)


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (Plan(analysis="country", tool="map", query="Lyon"), "tool_not_offered"),
        (ModelRefusal("refused"), "plan_refused"),
    ],
)
def test_an_unusable_plan_is_counted_with_its_reason(small, plan, reason):
    texts, counts = planned(Sabotaged(teacher(small[0]), Plan, plan), small[1])
    assert texts == []
    assert counts[reason] > 0


def test_a_judge_that_refuses_keeps_nothing(small):
    model = Sabotaged(teacher(small[0]), Judgement, ModelRefusal("broken_json"))
    texts, counts = planned(model, small[1])
    assert texts == []
    assert counts["judged_unlikely"] > 0


EVIDENCE = ("city:Lyon", "country:France")


def a_task(question="Find the capital of the country of Lyon.", gold="Lyon", evidence=None):
    return make_task("t1", question, gold=(gold,), hops=2, evidence=list(evidence or EVIDENCE))


def reasoned(model, documents, task):
    funnel = Funnel()
    by_id = {document.document_id: document for document in documents}
    texts = gathered(Reasoner(model, by_id, funnel, tags.write, in_flight=2).texts([task]))
    return texts, funnel.counts("reasoning")


def test_a_right_refined_answer_is_kept_with_guess_and_reasoning(small):
    (text,), counts = reasoned(teacher(small[0]), small[1], a_task())
    guess, knowledge, answer = (piece.content for piece in text.pieces)
    assert guess.startswith("<think> country , capital , maybe ")
    assert knowledge.startswith("Lyon | country: France")
    assert answer.endswith("<answer> Lyon </answer>")
    assert counts["kept"] == 1


def test_a_wrong_refined_answer_is_dropped(small):
    texts, counts = reasoned(teacher(small[0]), small[1], a_task(gold="Turin"))
    assert (texts, counts) == ([], {"wrong_answer": 1})


def test_a_task_with_hidden_evidence_is_left_out(small):
    task = a_task(evidence=("city:Lyon", "country:Secret"))
    assert reasoned(teacher(small[0]), small[1], task)[1] == {"evidence_not_visible": 1}


def test_neither_step_of_reasoning_is_told_the_gold_answer(small):
    model = Sabotaged(teacher(small[0]), None, None)
    reasoned(model, small[1], a_task(gold="Gold Standard"))
    assert model.asked
    assert not any("Gold Standard" in str(request.messages()) for request in model.asked)


def test_a_guess_is_made_without_any_knowledge(small):
    told = QuestionInput(question="Find the capital of the country of Lyon.")
    guess = answered(teacher(small[0]), guess_request(told))
    assert guess.parts == ("country", "capital")
    knowledge = KnowledgeInput(question=told.question, first_answer="Oslo", knowledge=())
    assert answered(teacher(small[0]), refine_request(knowledge)).answer == "Oslo"

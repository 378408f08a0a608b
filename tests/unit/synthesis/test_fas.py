import asyncio

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
    Plan,
    PlanInput,
    judge_request,
)
from espalier_search.synthesis.agent_texts.embedded import EmbeddedTeacher
from espalier_search.synthesis.agent_texts.first_order import Planner, Reasoner, unsupported
from espalier_search.synthesis.agent_texts.schema import QuestionReader, Schema
from espalier_search.synthesis.task_making import formal_question
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


def teacher(schema):
    return EmbeddedTeacher(schema, mistake_share=0.0, seed=3)


def answered(model, request):
    return asyncio.run(model.answer(request))


def gathered(stream):
    async def collect():
        return [item async for item in stream]

    return asyncio.run(collect())


@pytest.mark.parametrize(
    ("question", "name", "labels"),
    [
        ("Find the capital of a neighbour of the country where Lyon lies.", "Lyon",
         ("country", "neighbours", "capital")),
        ("Which country is the country with Turin as its capital?", "Turin", ("capital of",)),
        ("Tell me both the country of Lyon and the population of Lyon.", "Lyon",
         ("country", "population")),
    ],
)  # fmt: skip
def test_a_question_is_read_phrase_by_phrase(small, question, name, labels):
    reading = QuestionReader(small[0]).read(question)
    assert (reading.name, reading.labels) == (name, labels)


@pytest.mark.parametrize("question", ["", "Who built Lyon?", "What is the capital of Lyon?"])
def test_a_question_outside_the_schema_is_not_read(small, question):
    assert QuestionReader(small[0]).read(question) is None


@pytest.mark.slow
def test_every_training_chain_is_read_as_it_was_asked(candidates, knowledge_dir, graph):
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


@pytest.mark.parametrize(
    ("analysis", "tool", "query", "likely"),
    [
        ("Country , Capital", "search", "lyon country", True),
        ("country , capital", "map", "Lyon country", False),
        ("country", "search", "Lyon country", False),
        ("capital , country", "search", "Lyon capital", False),
        ("country , neighbours", "search", "Lyon country", False),
        ("country , capital", "search", "Lyon capital", False),
        ("country , capital", "search", "Turin country", False),
    ],
)
def test_the_judge_tells_plans_by_the_words_of_the_question(small, analysis, tool, query, likely):
    told = PlanInput(
        question="What is the capital of the country of Lyon?",
        tools=(SEARCH,),
        plan=Plan(analysis=analysis, tool=tool, query=query),
    )
    judgement = answered(teacher(small[0]), judge_request(told))
    assert judgement.likely is likely, judgement.reason


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


def planned(model, documents):
    funnel = Funnel()
    config = AgentTextsConfig(memories=len(documents))
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
    ("replaced", "by", "reason"),
    [
        (Plan, Plan(analysis="country", tool="map", query="Lyon"), "tool_not_offered"),
        (Plan, ModelRefusal("refused"), "plan_refused"),
        (Judgement, ModelRefusal("broken_json"), "judged_unlikely"),
    ],
)
def test_an_unusable_plan_is_counted_with_its_reason(small, replaced, by, reason):
    texts, counts = planned(Sabotaged(teacher(small[0]), replaced, by), small[1])
    assert texts == []
    assert counts[reason] > 0


def a_task(gold="Lyon", evidence=("city:Lyon", "country:France")):
    question = "Find the capital of the country of Lyon."
    return make_task("t1", question, gold=(gold,), hops=2, evidence=list(evidence))


def reasoned(model, documents, task):
    funnel = Funnel()
    by_id = {document.document_id: document for document in documents}
    texts = gathered(Reasoner(model, by_id, funnel, tags.write, in_flight=2).texts([task]))
    return texts, funnel.counts("reasoning")


def test_a_right_refined_answer_is_kept_with_guess_and_reasoning(small):
    (text,), counts = reasoned(teacher(small[0]), small[1], a_task())
    guess, knowledge, answer = (piece.content for piece in text.pieces)
    assert "country , capital" in guess
    assert knowledge.startswith("Lyon | country: France")
    assert answer.endswith("<answer> Lyon </answer>")
    assert counts["kept"] == 1


def test_a_wrong_answer_or_hidden_evidence_is_left_out(small):
    model, hidden = teacher(small[0]), ("city:Lyon", "country:Secret")
    assert reasoned(model, small[1], a_task(gold="Turin")) == ([], {"wrong_answer": 1})
    assert reasoned(model, small[1], a_task(evidence=hidden))[1] == {"evidence_not_visible": 1}


def test_neither_step_of_reasoning_is_told_the_gold_answer(small):
    model = Sabotaged(teacher(small[0]), None, None)
    reasoned(model, small[1], a_task(gold="Gold Standard"))
    assert model.asked
    assert not any("Gold Standard" in str(request.messages()) for request in model.asked)

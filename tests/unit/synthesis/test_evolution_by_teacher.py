"""A model proposes questions over HTTP; what the triples do not prove is refused by its reason."""

import json
import random

import pytest

from espalier.completions import ModelRefusal, parsed_answer
from espalier.config import EndpointConfig
from espalier.environments.proposals import ProposalRequest
from espalier.records import EngineError
from espalier_search.synthesis.evolution import Prover
from espalier_search.synthesis.evolution_teacher import (
    ProposedQuestion,
    ProposedQuestions,
    TeacherProposer,
)
from tests.benchmarks.brute_force import Store, answers, faults, parsed
from tests.fakes.endpoint_double import Scripted, completion, running_double

from .conftest import PROFILE
from .test_hostile_answers import content_of, mutated


@pytest.fixture(scope="module")
def prover(knowledge_dir, synthetic_dir):
    return Prover(PROFILE, knowledge_dir, synthetic_dir)


@pytest.fixture
def double():
    with running_double() as server:
        yield server


def poser_at(prover, double, **settings):
    endpoint = EndpointConfig(url=double.url, model="m", attempts=1, asks=1, **settings)
    return TeacherProposer(prover, endpoint)


def order(tasks, count=8):
    return ProposalRequest(count, tasks["train"][:20], tasks["train"], "a")


def proposals(*questions):
    rows = [{"entity": entity, "relations": list(path)} for entity, *path in questions]
    return json.dumps({"questions": rows})


def chains_of(tasks):
    """Start and relations of the chains among the tasks."""
    found = []
    for task in tasks:
        node, path = parsed(task.extra["query"]), []
        while node.kind == "step":
            path.insert(0, node.relation)
            [node] = node.parts
        if node.kind == "names" and len(node.names) == 1:
            found.append((task.extra["entities"][0], *path))
    return found


def test_what_a_model_proposes_is_proven_by_the_graph(prover, double, tasks, graph):
    store = Store((t.subject, t.relation, t.object) for t in graph.triples())
    cities = [e.name for e in graph.entities.values() if e.kind == "city" and e.split == "train"]
    rng = random.Random(0)
    relations = [name for name, r in graph.relations.items() if r.subject_kind == "city"]
    double.respond = lambda _: completion(
        proposals(*((rng.choice(cities), rng.choice(relations)) for _ in range(16)))
    )
    posed = poser_at(prover, double).propose(order(tasks, 20))
    assert len(posed.tasks) > 5
    for task in posed.tasks:
        node = parsed(task.extra["query"])
        [answer] = answers(node, store)
        assert task.verifier.gold == (graph.entities[answer].name,)
        assert faults(node, store) == []
        assert task.metadata.split == "train"
    seen = json.loads(double.seen[0][1]["messages"][1]["content"])
    assert len(seen["failed"]) == 8
    assert {row["name"] for row in seen["relations"]} == set(graph.relations)


@pytest.mark.parametrize(
    ("split", "reason"), [("heldout", "asked_in_dev_or_heldout"), ("train", "asked_before")]
)
def test_questions_of_any_split_are_refused(prover, double, tasks, split, reason):
    chains = chains_of(tasks[split])
    assert len(chains) > 50
    double.respond = lambda _: completion(proposals(*chains[:32]))
    assert poser_at(prover, double).propose(order(tasks)) == ([], {reason: 32})


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (("Atlantis", "country"), "unknown_entity"),
        (("Paris", "is loved by"), "unknown_relation"),
        (("Paris", "country", "country"), "relations_do_not_join"),
    ],
)
def test_names_that_mean_nothing_are_refused_by_their_reason(prover, double, question, reason):
    entity, *path = question
    poser = poser_at(prover, double)
    assert poser.query_of(ProposedQuestion(entity=entity, relations=tuple(path))) == reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("Sure, here are some questions.", "answer_broken_json"),
        ('{"questions": [{"entity": "Paris"}]}', "answer_wrong_shape"),
        ('{"questions": [{"entity": "<search>", "relations": ["a"]}]}', "answer_wrong_shape"),
    ],
)
def test_an_answer_that_cannot_be_read_is_refused(prover, double, tasks, content, reason):
    double.usual = Scripted(completion(content))
    assert poser_at(prover, double).propose(order(tasks)) == ([], {reason: 1})


def test_a_missing_server_ends_the_phase_with_an_error(prover, double, tasks):
    double.usual = Scripted({}, status=500)
    with pytest.raises(EngineError):
        poser_at(prover, double).propose(order(tasks))


def test_hostile_proposals_are_refused_or_proven_and_never_crash(prover, double, tasks):
    valid = {"questions": [{"entity": "Paris", "relations": ["country", "currency"]}]}
    poser, rng = poser_at(prover, double), random.Random(0)
    for _ in range(3000):
        body = json.dumps(completion(content_of(mutated(valid, rng), rng))).encode()
        answer = parsed_answer(body, ProposedQuestions)
        if isinstance(answer, ModelRefusal):
            continue
        for proposed in answer.questions:
            found = poser.query_of(proposed)
            assert isinstance(found, str) or set(proposed.relations) <= set(prover.graph.relations)

"""Questions that evolve from failed ones: proven on the triples, and kept apart from held-out."""

import random
import re
from collections import Counter
from itertools import islice

import pytest

from espalier.config import WebRLConfig
from espalier.environments.proposals import ProposalRequest
from espalier.records import DataError, NullTracker
from espalier.stages import ingest
from espalier_search.synthesis.evolution import (
    GraphProposer,
    Patterns,
    Prover,
    failed_patterns,
    rewarding_patterns,
)
from tests.benchmarks.brute_force import Store, answers, faults, parsed

from .conftest import PROFILE as PLAIN

PROFILE = PLAIN.model_copy(update={"self_play": WebRLConfig()})


@pytest.fixture(scope="module")
def prover(knowledge_dir, synthetic_dir):
    return Prover(PROFILE, knowledge_dir, synthetic_dir)


@pytest.fixture(scope="module")
def poser(prover):
    return GraphProposer(prover, failed_patterns)


@pytest.fixture(scope="module")
def store(graph):
    return Store((t.subject, t.relation, t.object) for t in graph.triples())


def order(tasks, seed="a", count=60, failed=None):
    return ProposalRequest(
        count, tasks["train"][:80] if failed is None else failed, tasks["train"], seed
    )


@pytest.fixture(scope="module")
def posed(poser, tasks):
    return poser.propose(order(tasks))


def test_every_posed_task_is_proven_by_another_evaluator(posed, prover, tasks, graph, store):
    assert len(posed.tasks) == 60
    # the challenger needs no failures
    challenged = GraphProposer(prover, rewarding_patterns).propose(
        order(tasks, failed=[], count=30)
    )
    assert len(challenged.tasks) == 30
    for task in (*posed.tasks, *challenged.tasks):
        node = parsed(task.extra["query"])
        [answer] = answers(node, store)
        assert task.verifier.gold == (graph.entities[answer].name,)
        assert faults(node, store) == []


def test_posed_tasks_are_apart_from_dev_and_heldout_questions(posed, tasks, graph):
    apart = [*tasks["dev"], *tasks["heldout"]]
    secret = {e.name for e in graph.entities.values() if e.split in ("dev", "heldout")}
    shown = {e.name for e in graph.entities.values() if e.split in ("train", "hub")}
    assert not {t.extra["query"] for t in posed.tasks} & {t.extra["query"] for t in apart}
    assert not {t.question.lower() for t in posed.tasks} & {t.question.lower() for t in apart}
    for task in posed.tasks:
        assert task.arguments == {"index": "train"}
        assert task.metadata.split == "train"
        assert not (secret - shown) & set(task.extra["entities"])


def test_nothing_is_posed_twice_or_asked_already(posed, poser, tasks):
    again = poser.propose(order(tasks)._replace(known=[*tasks["train"], *posed.tasks]))
    ids = [task.task_id for task in (*tasks["train"], *posed.tasks, *again.tasks)]
    assert len(set(ids)) == len(ids)
    assert again.refused["asked_before"] > posed.refused.get("asked_before", 0)


def test_one_failed_pattern_leads_to_its_neighbours_alone(poser, tasks):
    failed = [t for t in tasks["train"] if t.extra["kind"] == "chain" and t.extra["hops"] == 2]
    found = poser.propose(order(tasks, failed=failed[:1], count=20)).tasks
    assert {task.extra["hops"] for task in found} == {1, 2, 3}
    inner, outer = failed[0].metadata.pattern.removesuffix("(C))").split("(")[::-1]
    for task in found:
        assert {inner, outer} & set(re.split(r"\W+", task.metadata.pattern))


@pytest.mark.slow
def test_equal_seeds_propose_equal_tasks_and_other_seeds_others(
    poser, posed, tasks, knowledge_dir, synthetic_dir
):
    fresh = GraphProposer(Prover(PROFILE, knowledge_dir, synthetic_dir), failed_patterns)
    assert fresh.propose(order(tasks)) == posed
    assert poser.propose(order(tasks, seed="b")).tasks != posed.tasks


def test_a_wording_of_dev_or_heldout_is_refused(prover, poser, posed, monkeypatch):
    questions = {" ".join(task.question.lower().split()) for task in posed.tasks}
    monkeypatch.setattr(prover, "_apart_questions", questions)
    verdicts = poser.propose(ProposalRequest(60, posed.tasks, (), "a"))
    assert verdicts.refused["worded_as_in_dev_or_heldout"] > 0


def test_questions_too_long_for_an_episode_are_refused(knowledge_dir, synthetic_dir, tasks):
    episode = PROFILE.episode.model_copy(update={"max_turns": 2})
    short = Prover(PROFILE.model_copy(update={"episode": episode}), knowledge_dir, synthetic_dir)
    posed = GraphProposer(short, failed_patterns).propose(order(tasks, count=20))
    assert {task.extra["hops"] for task in posed.tasks} == {1}
    assert posed.refused["too_long_for_an_episode"] > 0


def test_without_failures_of_a_known_shape_nothing_is_posed(poser, tasks):
    assert poser.propose(order(tasks, failed=[])) == ([], {})
    strange = tasks["train"][0]
    metadata = strange.metadata.model_copy(update={"pattern": "own"})
    strange = strange.model_copy(update={"metadata": metadata})
    posed = poser.propose(order(tasks, failed=[strange], count=3))
    assert posed == ([], {"pattern_of_another_shape": 120})


def test_knowledge_without_triples_is_refused(own_profile, synthetic_dir, tmp_path):
    knowledge = tmp_path / "knowledge"
    ingest.run(own_profile, {}, knowledge, NullTracker())
    with pytest.raises(DataError, match=r"knowledge\.triples"):
        Prover(own_profile, knowledge, synthetic_dir)


def test_the_challenger_begins_most_often_where_it_earned_most(prover, tasks):
    kinds = Counter(task.metadata.pattern for task in tasks["train"])
    best, *others = kinds
    earned = dict.fromkeys(others, 0.0) | {best: 1.0}
    asked = order(tasks, failed=[])._replace(earned=earned)
    drawn = Counter(islice(rewarding_patterns(asked, random.Random(0)), 2000))
    share = 1.0 / (1.0 + 0.02 * len(others))
    assert drawn[best] / 2000 == pytest.approx(share, abs=0.05)
    even = Counter(islice(rewarding_patterns(order(tasks), random.Random(0)), 2000))
    assert even[best] < 40


def test_whatever_was_posed_can_be_evolved_further(prover, poser, tasks, graph):
    patterns, posed, known = Patterns(graph), tasks["train"][:80], tasks["train"]
    for generation in range(3):
        posed = poser.propose(ProposalRequest(40, posed, known, str(generation))).tasks
        assert len(posed) == 40
        assert all(patterns.of(task.metadata.pattern) for task in posed)
        known = [*known, *posed]

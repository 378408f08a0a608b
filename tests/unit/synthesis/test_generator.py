from collections import Counter

from espalier.environments.funnel import Funnel, apportion
from espalier_search.synthesis.task_making import kind_of
from espalier_search.synthesis.webshaper.generator import Generator
from espalier_search.synthesis.webshaper.query import canonical, hops, signature
from espalier_search.synthesis.webshaper.rules import RULES
from tests.benchmarks.brute_force import Store, answers, parsed

from .conftest import NUM_QUESTIONS


def test_every_question_is_fair_and_sql_finds_its_single_answer(candidates, graph):
    store = Store((t.subject, t.relation, t.object) for t in graph.triples())
    questions = [candidate for found in candidates.values() for candidate in found]
    assert len(questions) > 500
    for candidate in questions:
        assert answers(parsed(canonical(candidate.query)), store) == {candidate.answer}
        assert [rule.__name__ for rule in RULES if rule(candidate)] == []


def test_chain_entities_belong_to_the_split_or_are_hubs(candidates, graph):
    for split, found in candidates.items():
        for candidate in found:
            entities = [graph.entities[entity_id] for entity_id in candidate.entities]
            assert {entity.split for entity in entities} <= {split, "hub"}
            assert any(entity.split == split for entity in entities)
            assert all(entity.askable for entity in entities)


def test_the_number_asked_for_is_met_in_the_asked_mix(candidates):
    found = candidates["train"]
    assert len(found) == NUM_QUESTIONS["train"]
    mix = Counter((kind_of(c.query), hops(c.query)) for c in found)
    assert mix["chain", 2] >= mix["chain", 3] > mix["chain", 1] > mix["chain", 4] > 0
    assert mix["intersection", 2] > 0
    assert mix["union", 2] > 0


def test_rare_paths_appear_as_often_as_common_ones(candidates):
    chains = [c for c in candidates["train"] if kind_of(c.query) == "chain" and hops(c.query) == 1]
    signatures = Counter(signature(c.query) for c in chains)
    assert len(signatures) >= 15
    assert signatures.most_common(1)[0][1] <= len(chains) // 4


def test_an_exhausted_source_gives_what_it_has_and_is_reported(graph, worlds):
    generator = Generator(graph, {"union": 1.0}, 0)
    funnel = Funnel()
    found = generator.generate("dev", 100_000, worlds["dev"], funnel)
    assert len(found) < 100_000
    assert funnel.counts("dev.families_run_dry") == {"union": 1}


def test_shares_are_whole_and_add_up():
    assert apportion({"a": 0.15, "b": 0.4, "c": 0.45}, 7) == {"a": 1, "b": 3, "c": 3}
    assert apportion({"a": 1.0, "b": 1.0}, 1) == {"a": 1, "b": 0}

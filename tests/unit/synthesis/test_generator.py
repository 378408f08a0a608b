from collections import Counter, defaultdict

import pytest

from espalier.environments.funnel import Funnel, apportion
from espalier_search.synthesis.task_making import kind_of
from espalier_search.synthesis.webshaper.generator import Generator, kind_weights
from espalier_search.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Projection,
    canonical,
    hops,
    signature,
)
from espalier_search.synthesis.webshaper.rules import RULES, broken_rule

from .conftest import NUM_QUESTIONS, PROFILE


def _all(candidates):
    return [candidate for found in candidates.values() for candidate in found]


def _brute_force(query, triples):
    """Answers from the bare list of triples, by a recursion that shares no code with the room."""
    if isinstance(query, Constant):
        return {query.entity_id}
    if isinstance(query, ConstantSet):
        return set(query.entity_ids)
    if isinstance(query, Projection):
        subjects = _brute_force(query.inner, triples)
        return {o for s in subjects for o in triples[query.relation, s]}
    answers = [_brute_force(part, triples) for part in query.parts]
    joined = answers[0]
    for more in answers[1:]:
        joined = joined & more if isinstance(query, Intersection) else joined | more
    return joined


def test_brute_force_finds_the_same_single_answer(candidates, graph):
    triples = defaultdict(set)
    for triple in graph.triples():
        triples[triple.relation, triple.subject].add(triple.object)
    questions = _all(candidates)
    assert len(questions) > 500
    for candidate in questions:
        assert _brute_force(candidate.query, triples) == {candidate.answer}


def test_no_question_breaks_a_rule(candidates):
    for candidate in _all(candidates):
        assert [rule.__name__ for rule in RULES if rule(candidate)] == []
        assert broken_rule(candidate) is None


def test_no_query_occurs_twice_in_or_across_splits(candidates):
    texts = [canonical(candidate.query) for candidate in _all(candidates)]
    assert len(set(texts)) == len(texts)


def test_chain_entities_belong_to_the_split_or_are_hubs(candidates, graph):
    for split, found in candidates.items():
        for candidate in found:
            entities = [graph.entities[entity_id] for entity_id in candidate.entities]
            assert {entity.split for entity in entities} <= {split, "hub"}
            assert any(entity.split == split for entity in entities)
            assert all(entity.askable for entity in entities)


def test_names_of_other_splits_are_in_no_chain(candidates):
    train_names = {c.name(e) for c in candidates["train"] for e in c.entities}
    for split in ("dev", "heldout"):
        own = {
            candidate.name(entity)
            for candidate in candidates[split]
            for entity in candidate.entities
            if not candidate.world.graph.entities[entity].hub
        }
        assert not own & train_names


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


@pytest.mark.slow
def test_equal_seeds_draw_equal_questions_and_other_seeds_others(graph, worlds):
    def draw(seed):
        generator = Generator(graph, kind_weights(PROFILE.synthesis), seed)
        found = generator.generate("train", 50, worlds["train"], Funnel())
        return [canonical(candidate.query) for candidate in found]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_an_exhausted_source_gives_what_it_has_and_is_reported(graph, worlds):
    generator = Generator(graph, {"union": 1.0}, 0)
    funnel = Funnel()
    found = generator.generate("dev", 100_000, worlds["dev"], funnel)
    assert len(found) < 100_000
    assert funnel.counts("dev.families_run_dry") == {"union": 1}


def test_shares_are_whole_and_add_up():
    assert apportion({"a": 0.15, "b": 0.4, "c": 0.45}, 7) == {"a": 1, "b": 3, "c": 3}
    assert apportion({"a": 1.0, "b": 1.0}, 1) == {"a": 1, "b": 0}

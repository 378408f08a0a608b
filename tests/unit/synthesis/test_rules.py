import pytest

from espalier.records.knowledge import Document, Entity, KnowledgeGraph, Relation, Triple
from espalier_search.synthesis.teacher import route_of
from espalier_search.synthesis.webshaper import rules as rules_module
from espalier_search.synthesis.webshaper.candidate import CandidateQuestion, DocumentTexts, World
from espalier_search.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Projection,
    Union,
    evaluate,
)
from espalier_search.synthesis.webshaper.rules import broken_rule

KINDS = {
    "lyon": "city", "nice": "city", "bonn": "city", "kehl": "city",
    "france": "country", "germany": "country", "spain": "country", "italy": "country",
    "euro": "currency", "franc": "currency", "cet": "zone",
}  # fmt: skip


def _relation(name, label, subject_kind, object_kind, phrasing, *, functional=True):
    return Relation(name, label, subject_kind, object_kind, functional, (phrasing,))


RELATIONS = [
    _relation("country", "country", "city", "country", "the country of {x}"),
    _relation("zone", "zone", "city", "zone", "the zone of {x}"),
    _relation("capital", "capital", "country", "city", "the capital of {x}"),
    _relation("country_zone", "zone", "country", "zone", "the zone of {x}"),
    _relation("currency", "currency", "country", "currency", "the currency of {x}"),
    _relation("borders", "borders", "country", "country", "a neighbour of {x}", functional=False),
    _relation("nearest", "nearest", "city", "city", "the city nearest to {x}"),
]
TRIPLES = [
    ("lyon", "country", "france"), ("nice", "country", "france"),
    ("bonn", "country", "germany"), ("kehl", "country", "germany"),
    ("lyon", "zone", "cet"), ("france", "country_zone", "cet"),
    ("lyon", "nearest", "nice"), ("nice", "nearest", "lyon"),
    ("france", "currency", "euro"), ("germany", "currency", "franc"),
    ("germany", "capital", "bonn"), ("france", "capital", "kehl"),
    ("france", "borders", "spain"), ("france", "borders", "italy"),
    ("france", "borders", "germany"), ("germany", "borders", "france"),
    ("spain", "borders", "france"), ("spain", "borders", "italy"), ("italy", "borders", "france"),
    ("italy", "capital", "nice"),
]  # fmt: skip


def _world(extra_lines=None, max_line_words=40):
    entities = [
        Entity(name, name.title(), kind, hub=False, split="train", askable=True, document_id=name)
        for name, kind in KINDS.items()
    ]
    graph = KnowledgeGraph(entities, RELATIONS, (Triple(*row) for row in TRIPLES))
    documents = []
    for entity in entities:
        lines = []
        for relation in RELATIONS:
            listed = graph.objects(relation.name, entity.entity_id)
            if listed:
                lines.append(f"{relation.label}: {'; '.join(name.title() for name in listed)}")
        lines += (extra_lines or {}).get(entity.entity_id, [])
        documents.append(Document(entity.entity_id, entity.name, tuple(lines), "train"))
    evidence = DocumentTexts(documents)
    return World(graph, evidence, evidence, max_line_words)


def _chain(start, *relations):
    query = Constant(start)
    for relation in relations:
        query = Projection(relation, query)
    return query


def test_a_fair_chain_breaks_no_rule():
    assert broken_rule(CandidateQuestion(_chain("lyon", "country", "currency"), _world())) is None


def test_a_single_projection_may_be_next_to_its_constant():
    assert broken_rule(CandidateQuestion(_chain("lyon", "country"), _world())) is None


def test_an_intersection_one_projection_before_the_target_is_fair():
    lists = (_chain("france", "borders"), _chain("spain", "borders"))
    query = Projection("capital", Intersection(lists))
    assert broken_rule(CandidateQuestion(query, _world())) is None


@pytest.mark.parametrize(
    ("query", "rule"),
    [
        (_chain("france", "borders"), "not_unique"),
        (_chain("spain", "capital"), "not_unique"),
        (_chain("lyon", "nearest", "nearest"), "answer_on_chain"),
        (_chain("lyon", "country", "country_zone"), "answer_in_earlier_document"),
        (
            Intersection((_chain("lyon", "nearest", "country"), _chain("bonn", "country"))),
            "not_unique",
        ),
        (
            Intersection((_chain("spain", "borders"), _chain("bonn", "country", "borders"))),
            "constant_beside_target",
        ),
        (
            Projection("capital", Intersection((_chain("france", "borders"), Constant("italy")))),
            "constant_constant_edge",
        ),
        (
            Projection(
                "currency",
                Intersection((_chain("spain", "borders"), _chain("germany", "borders"))),
            ),
            "redundant_constraint",
        ),
        (
            Projection(
                "capital", Intersection((_chain("france", "borders"), _chain("france", "borders")))
            ),
            "repeated_constant",
        ),
    ],
)
def test_an_unfair_query_is_refused_by_its_rule(query, rule):
    candidate = CandidateQuestion(query, _world())
    assert getattr(rules_module, rule)(candidate)
    assert broken_rule(candidate) is not None


def test_an_intermediate_that_is_not_one_entity_is_ambiguous():
    candidate = CandidateQuestion(_chain("spain", "borders", "currency"), _world())
    assert candidate.trace.answers == {"euro"}
    assert rules_module.ambiguous_step(candidate)


def test_an_answer_in_another_line_of_its_document_is_refused():
    world = _world(extra_lines={"france": ["note: paid in euro everywhere"]})
    query = _chain("lyon", "country", "currency")
    assert broken_rule(CandidateQuestion(query, world)) == "answer_twice_in_last_document"


@pytest.mark.parametrize(
    ("sentence", "rule"),
    [
        ("France has the Euro as its currency.", None),
        ("Its currency is the Euro.", None),
        ("currency: Euro", None),
        ("The currency of Germany is not the Euro.", "answer_twice_in_last_document"),
        ("The Euro is paid with everywhere.", "answer_twice_in_last_document"),
        ("capital: Euro currency", "answer_twice_in_last_document"),
    ],
)
def test_a_sentence_that_states_the_triple_is_no_shortcut(sentence, rule):
    world = _world(extra_lines={"france": [sentence]})
    assert broken_rule(CandidateQuestion(_chain("lyon", "country", "currency"), world)) == rule


def test_an_answer_in_the_first_document_text_is_refused():
    world = _world(extra_lines={"lyon": ["note: shops take the Euro"]})
    query = _chain("lyon", "country", "currency")
    assert broken_rule(CandidateQuestion(query, world)) == "answer_in_earlier_document"


def test_a_part_of_a_word_is_no_occurrence():
    world = _world(extra_lines={"lyon": ["note: a European city"]})
    assert broken_rule(CandidateQuestion(_chain("lyon", "country", "currency"), world)) is None


def test_a_chain_whose_last_step_suffices_is_refused():
    candidate = CandidateQuestion(_chain("lyon", "country", "country_zone"), _world())
    assert rules_module.shorter_chain(candidate)


def test_a_join_with_a_skippable_step_is_refused():
    arms = (_chain("lyon", "country", "country_zone"), _chain("nice", "country", "country_zone"))
    assert rules_module.skippable_step(CandidateQuestion(Intersection(arms), _world()))
    lists = (_chain("france", "borders"), _chain("spain", "borders"))
    fair = Projection("capital", Intersection(lists))
    assert not rules_module.skippable_step(CandidateQuestion(fair, _world()))


def test_a_route_follows_the_inner_of_nested_joins_first():
    inner = Intersection((_chain("france", "borders"), _chain("spain", "borders")))
    arms = (Projection("borders", inner), _chain("lyon", "country", "borders"))
    route = route_of(Projection("capital", Intersection(arms)), _world().graph)
    assert route.labels == ("borders", "borders", "borders", "country", "borders", "capital")
    assert route.arms[0].names == ()
    assert [arm.names for arm in route.arms[0].start.arms] == [("France",), ("Spain",)]


def test_a_line_longer_than_an_observation_is_refused():
    lists = (_chain("france", "borders"), _chain("spain", "borders"))
    query = Projection("capital", Intersection(lists))
    world = _world(max_line_words=2)
    assert broken_rule(CandidateQuestion(query, world)) == "unreadable_line"


def test_every_member_of_a_union_must_hold_something():
    empty = Projection("capital", ConstantSet(("germany", "spain")))
    candidate = CandidateQuestion(empty, _world())
    assert rules_module.empty_union_member(candidate)
    full = Union((_chain("germany", "capital"), _chain("italy", "capital")))
    assert not rules_module.empty_union_member(CandidateQuestion(full, _world()))


def test_a_union_of_constants_is_the_union_of_their_projections():
    graph = _world().graph
    united = Projection("borders", ConstantSet(("spain", "germany")))
    members = Union((_chain("spain", "borders"), _chain("germany", "borders")))
    assert evaluate(united, graph) == evaluate(members, graph) == {"france", "italy"}

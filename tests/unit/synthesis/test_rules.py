import pytest

from espalier.records.knowledge import Document, Entity, KnowledgeGraph, Relation, Triple
from espalier_search.synthesis.webshaper import rules as rules_module
from espalier_search.synthesis.webshaper.candidate import CandidateQuestion, DocumentTexts, World
from espalier_search.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Projection,
    Union,
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


FRANCE, SPAIN, GERMANY = (_chain(name, "borders") for name in ("france", "spain", "germany"))
JOIN = Projection("capital", Intersection((FRANCE, SPAIN)))


@pytest.mark.parametrize(
    "query", [_chain("lyon", "country", "currency"), _chain("lyon", "country"), JOIN]
)
def test_a_fair_question_breaks_no_rule(query):
    assert broken_rule(CandidateQuestion(query, _world())) is None


@pytest.mark.parametrize(
    ("query", "rule"),
    [
        (FRANCE, "not_unique"),
        (_chain("spain", "capital"), "not_unique"),
        (_chain("spain", "borders", "currency"), "ambiguous_step"),
        (_chain("lyon", "nearest", "nearest"), "answer_on_chain"),
        (_chain("lyon", "country", "country_zone"), "answer_in_earlier_document"),
        (_chain("lyon", "country", "country_zone"), "shorter_chain"),
        (Intersection((SPAIN, _chain("bonn", "country", "borders"))), "constant_beside_target"),
        (
            Projection("capital", Intersection((FRANCE, Constant("italy")))),
            "constant_constant_edge",
        ),
        (Projection("currency", Intersection((SPAIN, GERMANY))), "redundant_constraint"),
        (Projection("capital", Intersection((FRANCE, FRANCE))), "repeated_constant"),
        (
            Intersection(
                tuple(_chain(city, "country", "country_zone") for city in ("lyon", "nice"))
            ),
            "skippable_step",
        ),
        (Projection("capital", ConstantSet(("germany", "spain"))), "empty_union_member"),
    ],
)
def test_an_unfair_query_is_refused_by_its_rule(query, rule):
    candidate = CandidateQuestion(query, _world())
    assert getattr(rules_module, rule)(candidate)
    assert broken_rule(candidate) is not None


def test_full_union_members_and_short_lines_are_asked_for():
    full = Union((_chain("germany", "capital"), _chain("italy", "capital")))
    assert not rules_module.empty_union_member(CandidateQuestion(full, _world()))
    narrow = _world(max_line_words=2)
    assert broken_rule(CandidateQuestion(JOIN, narrow)) == "unreadable_line"


@pytest.mark.parametrize(
    ("document", "line", "rule"),
    [
        ("france", "France has the Euro as its currency.", None),
        ("france", "Its currency is the Euro.", None),
        ("france", "The currency of Germany is not the Euro.", "answer_twice_in_last_document"),
        ("france", "The Euro is paid with everywhere.", "answer_twice_in_last_document"),
        ("france", "capital: Euro currency", "answer_twice_in_last_document"),
        ("lyon", "note: shops take the Euro", "answer_in_earlier_document"),
        ("lyon", "note: a European city", None),
    ],
)
def test_only_what_states_the_triple_may_say_the_answer(document, line, rule):
    world = _world(extra_lines={document: [line]})
    assert broken_rule(CandidateQuestion(_chain("lyon", "country", "currency"), world)) == rule

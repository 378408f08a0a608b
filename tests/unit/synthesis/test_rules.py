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


PROSE = {
    "lyon": ["Lyon is a city of the country France."],
    "france": ["The currency of France is the Euro.", "France is old."],
}


def _prose_world(sentences, *, hidden=(), max_line_words=40):
    """Documents of a user's own, without lines of triples; a view lacks the sentences `hidden`."""
    entities = [
        Entity(name, name.title(), kind, hub=False, split="train", askable=True,
               document_id=f"document:{name}")
        for name, kind in KINDS.items()
    ]  # fmt: skip
    graph = KnowledgeGraph(entities, RELATIONS, (Triple(*row) for row in TRIPLES))
    said = [
        Document(f"document:{name}", name.title(), tuple(lines), "train")
        for name, lines in {**PROSE, **sentences}.items()
    ]
    view = [
        Document(
            one.document_id, one.title, tuple(x for x in one.lines if x not in hidden), "train"
        )
        for one in said
    ]
    return World(graph, DocumentTexts(said), DocumentTexts(view), max_line_words, in_prose=True)


@pytest.mark.parametrize(
    ("sentences", "rule"),
    [
        ({}, None),
        ({"lyon": ["Lyon lies in France."]}, None),  # too few to tell how the relation is worded
        ({"lyon": ["country: France"]}, None),  # a line that the user wrote
        ({"lyon": ["Once country: France, they say"]}, None),
        ({"lyon": []}, "named_in_no_sentence"),
        ({"lyon": ["Lyon lies in Germany."]}, "named_in_no_sentence"),
        ({"lyon": ["Lyon is known for its Francestone."]}, "named_in_no_sentence"),
        ({"lyon": ["France is near.", "Few go to France."]}, "stated_in_no_sentence"),
        ({"lyon": ["Nice lies in France."]}, "stated_in_no_sentence"),  # of another subject
        ({"lyon": [*PROSE["lyon"], "The Euro is old."]}, "answer_in_earlier_document"),
        ({"france": ["France pays with the Euro."]}, None),
        ({"france": ["Its currency is the Euro.", "The currency Euro is young."]}, None),
        ({"france": ["The Euro is paid with.", "Few love the Euro."]}, "stated_in_no_sentence"),
        ({"france": ["The currency of Germany is the Euro."]}, "stated_in_no_sentence"),
        (
            {"france": ["The currency of France is the Euro.", "Few love the Euro."]},
            "answer_twice_in_last_document",
        ),
        ({"france": [f"The currency {'very ' * 40} is the Euro."]}, "unreadable_line"),
    ],
)
def test_in_prose_every_step_is_stated_by_a_sentence(sentences, rule):
    candidate = CandidateQuestion(_chain("lyon", "country", "currency"), _prose_world(sentences))
    assert broken_rule(candidate) == rule


def test_prose_that_a_view_hides_cannot_be_read():
    world = _prose_world({}, hidden=PROSE["lyon"])
    candidate = CandidateQuestion(_chain("lyon", "country", "currency"), world)
    assert broken_rule(candidate) == "unreadable_line"


def test_a_shortcut_in_prose_counts_if_a_sentence_names_it():
    zones = {"lyon": [*PROSE["lyon"], "The zone of Lyon is Cet."], "france": ["Its zone is Cet."]}
    query = _chain("lyon", "country", "country_zone")
    shortcut = rules_module.shorter_chain
    assert shortcut(CandidateQuestion(query, _prose_world(zones)))
    silent = {**zones, "lyon": PROSE["lyon"]}
    assert not shortcut(CandidateQuestion(query, _prose_world(silent)))
    assert broken_rule(CandidateQuestion(query, _prose_world(silent))) is None


def test_an_observation_shows_what_its_sentences_state():
    world = _prose_world({"lyon": [*PROSE["lyon"], "Few leave France."]})
    shown = world.statements.shown
    said = PROSE["lyon"][0]
    assert shown(f"Lyon | {said}", "lyon", "country") == ("France",)
    assert shown(f"France | old || Lyon | x | {said}", "Lyon", "country") == ("France",)
    for nothing in (
        "Lyon | Few leave France.",  # names it, and does not state it
        f"Nice | {said}",
        f"Lyon | {said.removesuffix('.')}",
        f"Lyon | {said.removesuffix(' France.')}",
        "no results",
    ):
        assert shown(nothing, "Lyon", "country") is None
    assert shown(f"Lyon | {said}", "Lyon", "zone") is None

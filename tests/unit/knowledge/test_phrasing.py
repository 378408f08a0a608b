"""Noun phrases that fit the label of a user's relation and the kind of its object."""

import json

import pytest

from espalier.config import KnowledgeConfig
from espalier_search.knowledge.phrasing import default_phrasings
from espalier_search.knowledge.splits import Splits, build_graph
from espalier_search.knowledge.user_sources import load_own
from espalier_search.synthesis.task_making import question_text
from espalier_search.synthesis.webshaper.query import Constant, Projection


@pytest.mark.parametrize(
    ("label", "kind", "first"),
    [
        ("born in", "city", "the city in which {x} was born"),
        ("founded in", "year", "the year in which {x} was founded"),
        ("opened in", "year", "the year in which {x} was opened"),
        ("died in", "year", "the year in which {x} died"),
        ("known for", "goods", "the goods for which {x} is known"),
        ("lives in", "entity", "the thing in which {x} lives"),
        ("works for", "company", "the company for which {x} works"),
        ("taught by", "person", "the person by whom {x} is taught"),
        ("member of", "club", "the club of which {x} is member"),
        ("plays", "instrument", "the instrument that {x} plays"),
        ("wrote", "book", "the book that {x} wrote"),
        ("headquarters", "town", "the headquarters of {x}"),
        ("birth year", "year", "the birth year of {x}"),
        ("spouse", "person", "the spouse of {x}"),
        ("inhabitants", "number", "the number of inhabitants of {x}"),
        ("staff", "number", "the staff of {x}"),
    ],
)
def test_a_phrase_fits_the_label_and_the_kind(label, kind, first):
    phrasings = default_phrasings(label, kind, functional=True)
    assert phrasings[0] == first
    assert len(set(phrasings)) == len(phrasings) >= 2
    assert all(phrasing.count("{x}") == 1 for phrasing in phrasings)


def test_a_relation_with_several_objects_asks_for_one_of_them():
    assert default_phrasings("child", "person", functional=False)[0] == "one child of {x}"


def test_years_and_people_are_asked_for_as_such(tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.md").write_text("# Ada\n\nAda was born in 1815.\n")
    rows = [
        {"subject": "Ada", "relation": "born_in", "object": "1815"},
        {"subject": "Ada", "relation": "tutor", "object": "Mary", "object_type": "person"},
    ]
    path = tmp_path / "triples.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    source = load_own(KnowledgeConfig(source="folder", path=texts, triples=path))
    splits = Splits({e.entity_id: "hub" if e.hub else "train" for e in source.entities},
                    frozenset(), 0)  # fmt: skip
    graph = build_graph(source, splits)
    year = graph.entities["year:1815"]
    assert year.hub
    assert year.askable
    asked = {}
    for relation, kind in (("born_in", "year"), ("tutor", "person")):
        query = Projection(relation, Constant("entity:ada"))
        asked[kind] = {question_text(query, kind, graph, seed) for seed in range(40)}
    assert "What is the year in which Ada was born?" in asked["year"]
    assert not any(text.startswith("Which year is") for text in asked["year"])
    assert "Who is the tutor of Ada?" in asked["person"]
    assert not any(text.startswith("What is") for text in asked["person"])

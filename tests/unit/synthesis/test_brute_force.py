"""The independent evaluator of the benchmarks must see what it is asked to look for."""

import pytest

from espalier_search.synthesis.webshaper.query import (
    ConstantSet,
    Intersection,
    Projection,
    canonical,
    evaluate,
)
from tests.benchmarks.brute_force import Store, answers, faults, parsed

from .test_rules import TRIPLES, _chain, _world


@pytest.fixture(scope="module")
def store():
    return Store(TRIPLES)


FAIR = [
    _chain("lyon", "country", "currency"),
    Projection("capital", Intersection((_chain("france", "borders"), _chain("spain", "borders")))),
    Projection("currency", Intersection((
        Projection("borders", ConstantSet(("spain", "germany"))), _chain("lyon", "country"),
    ))),
]  # fmt: skip


@pytest.mark.parametrize("query", FAIR, ids=canonical)
def test_sql_and_the_evaluator_agree_on_a_query(query, store):
    assert answers(parsed(canonical(query)), store) == evaluate(query, _world().graph)


@pytest.mark.parametrize("query", FAIR[:2], ids=canonical)
def test_a_fair_question_has_no_fault(query, store):
    assert faults(parsed(canonical(query)), store) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("currency((borders([spain]) & borders([germany])))", "redundant: a constraint changes"),
        ("capital((borders([france]) & [italy]))", "redundant: constant beside constant"),
        ("(borders(country([bonn])) & borders([spain]))", "shortcut: constant beside the target"),
        ("nearest(nearest([lyon]))", "shortcut: the answer is met on the way"),
        ("(zone([lyon]) & country_zone(country([nice])))", "redundant: a constraint changes"),
        ("country(nearest([lyon]))", "shortcut: steps can be left out"),
    ],
)
def test_planted_faults_are_found(text, fault, store):
    assert any(found.startswith(fault) for found in faults(parsed(text), store))


def test_names_with_marks_of_the_notation_are_read(store):
    node = parsed('"a & b"(["x | y" | "say \\"c\\""])')
    assert node.relation == "a & b"
    assert node.parts[0].names == ("x | y", 'say "c"')


def test_a_text_that_goes_on_is_refused():
    with pytest.raises(ValueError, match="left over"):
        parsed("country([lyon]) & borders([france])")

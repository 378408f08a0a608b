"""The independent evaluator of the benchmarks must see what it is asked to look for."""

import pytest

from espalier_search.synthesis.webshaper.query import canonical
from tests.benchmarks.brute_force import Store, faults, parsed

from .test_rules import JOIN, TRIPLES


@pytest.fixture(scope="module")
def store():
    return Store(TRIPLES)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("capital((borders([france]) & [italy]))", "redundant: constant beside constant"),
        ("(borders(country([bonn])) & borders([spain]))", "shortcut: constant beside the target"),
        ("nearest(nearest([lyon]))", "shortcut: the answer is met on the way"),
        ("(zone([lyon]) & country_zone(country([nice])))", "redundant: a constraint changes"),
        ("country(nearest([lyon]))", "shortcut: steps can be left out"),
    ],
)
def test_planted_faults_are_found_and_only_those(text, fault, store):
    assert any(found.startswith(fault) for found in faults(parsed(text), store))
    assert faults(parsed(canonical(JOIN)), store) == []

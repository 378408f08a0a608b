"""Noun phrases that fit the label of a user's relation and the kind of its object."""

import pytest

from espalier_search.knowledge.phrasing import default_phrasings


@pytest.mark.parametrize(
    ("label", "kind", "first"),
    [
        ("born in", "city", "the city in which {x} was born"),
        ("founded in", "year", "the year in which {x} was founded"),
        ("died in", "year", "the year in which {x} died"),
        ("known for", "goods", "the goods for which {x} is known"),
        ("taught by", "person", "the person by whom {x} is taught"),
        ("member of", "club", "the club of which {x} is member"),
        ("plays", "instrument", "the instrument that {x} plays"),
        ("wrote", "book", "the book that {x} wrote"),
        ("headquarters", "town", "the headquarters of {x}"),
        ("inhabitants", "number", "the number of inhabitants of {x}"),
    ],
)
def test_a_phrase_fits_the_label_and_the_kind(label, kind, first):
    phrasings = default_phrasings(label, kind, functional=True)
    assert phrasings[0] == first
    assert len(set(phrasings)) == len(phrasings) >= 2
    assert all(phrasing.count("{x}") == 1 for phrasing in phrasings)


def test_a_relation_with_several_objects_asks_for_one_of_them():
    assert default_phrasings("child", "person", functional=False)[0] == "one child of {x}"

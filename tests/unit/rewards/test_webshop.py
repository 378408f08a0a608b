"""WebShop's score, beside thefuzz's ratios and the values of upstream's own tests."""

import pytest

from espalier.rewards import webshop
from tests.golden_cases import golden_cases, golden_family

CATEGORY = f"a {webshop.CATEGORY_SEPARATOR} b {webshop.CATEGORY_SEPARATOR} c"
SHIRT, SEVEN_NOUNS = "soft cotton shirt", "power cable kettle lamp rack desk bottle"


def product(**changes):
    attributes = ("soft", "machine wash")
    shown = {"title": SHIRT, "query": "shirt", "product_category": CATEGORY}
    return webshop.ShopProduct(attributes=attributes, **{**shown, **changes})


def goal(**changes):
    fields = {"attributes": ("soft", "machine wash"), "options": ("red", "large")}
    shown = {"title": SHIRT, "query": "shirt", "product_category": CATEGORY}
    return webshop.ShopGoal(**{**fields, **shown, "price_upper": 40.0, **changes})


def test_ratios_are_those_of_thefuzz():
    (case,) = (case for case in golden_cases("webshop") if case["name"] == "token_set_ratio")
    wrong = [row for row in case["inputs"] if webshop.token_set_ratio(row[0], row[1]) != row[2]]
    assert wrong == []
    assert len(case["inputs"]) > 100


@pytest.mark.parametrize("case", golden_family("options", topic="webshop"), ids=lambda c: c["name"])
def test_options_match_as_upstream_tests_expect(case):
    assert (
        webshop.matched_options(case["inputs"]["chosen"], case["inputs"]["goal"])
        == case["expected"]
    )


def test_first_color_of_upstreams_list_stands_for_a_value():
    """A dark red is a dark, and matches any other dark but no red."""
    assert webshop.matched_options(["dark red"], ["red"]) == 0
    assert webshop.matched_options(["dark red"], ["dark wood"]) == 1


@pytest.mark.parametrize(
    "case", golden_family("attributes", topic="webshop"), ids=lambda c: c["name"]
)
def test_attributes_match_as_upstream_tests_expect(case):
    bare = {"title": "", "query": "", "product_category": ""}
    described = webshop.ShopProduct(**{**bare, **case["inputs"]["product"]})
    assert webshop.matched_attributes(described, case["inputs"]["goal"]) == case["expected"]


def test_score_is_the_matched_share():
    all_right = webshop.webshop_score(product(), goal(), price=40.0, options=("red", "large"))
    assert all_right == (1.0, 1.0, 2, 2, True)
    # 2 attributes, 1 option and no price of 2 + 2 + 1
    half = webshop.webshop_score(product(), goal(), price=40.01, options=("red", "small"))
    assert half == (3 / 5, 1.0, 2, 1, False)
    unpriced = webshop.webshop_score(product(), goal(price_upper=None), price=1e9, options=("red",))
    assert unpriced == (3 / 4, 1.0, 2, 1, None), "no price term"
    pairs = goal(options=(("color", "red"), ("size", "large")))
    assert webshop.webshop_score(product(), pairs, price=1, options=("large", "red")).score == 1.0
    with pytest.raises(ValueError, match="attributes"):
        webshop.webshop_score(product(), goal(attributes=()), price=1, options=())


@pytest.mark.parametrize(
    ("bought", "title", "factor"),
    [
        ({}, SHIRT, 1.0),
        ({"query": "coat", "product_category": "x", "title": "silk shirt"}, SHIRT, 1.0),
        # one noun of the goal's seven, another query and other categories
        ({"query": "coat", "product_category": "x", "title": "power"}, SEVEN_NOUNS, 0.5),
        ({"query": "coat", "title": "power"}, SEVEN_NOUNS, 1.0),
        # one noun of twelve
        ({"title": "shirt"}, " ".join(f"thing{c}" for c in "abcdefghijk") + " shirt", 0.1),
        ({"title": "lamp"}, SHIRT, 0.0),
        ({"title": ""}, SHIRT, 0.0),
    ],
)
def test_type_factor_follows_nouns_query_and_categories(bought, title, factor):
    right = {"price": 1, "options": ("red", "large")}
    scored = webshop.webshop_score(product(**bought), goal(title=title), **right)
    assert (scored.type_factor, scored.score) == (factor, factor)

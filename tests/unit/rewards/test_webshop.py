"""WebShop's score, beside thefuzz's ratios and the values of upstream's own tests."""

import pytest

from espalier.rewards.webshop import (
    CATEGORY_SEPARATOR,
    ShopGoal,
    ShopProduct,
    matched_attributes,
    matched_options,
    title_nouns,
    token_set_ratio,
    webshop_score,
)
from tests.golden_cases import golden_cases, golden_family

CATEGORY = f"a {CATEGORY_SEPARATOR} b {CATEGORY_SEPARATOR} c"
CORD = (
    "BRST AC Power Cord Outlet Socket Cable Plug Lead for Panasonic SC-HT830V DVD/VCR Combo Home "
    "Theater System"
)
BAR = "Saireed UL Listed 2 Prong Power Cord for JBL Bar 3.1 Bar 2.1 Channel 4K Ultra HD Soundbar"

SEVEN_NOUNS = "power cable kettle lamp rack desk bottle"


def product(**changes):
    fields = {
        "title": "soft cotton shirt", "query": "shirt", "product_category": CATEGORY,
        "attributes": ("soft", "machine wash"),
    }  # fmt: skip
    return ShopProduct(**{**fields, **changes})


def goal(**changes):
    fields = {
        "attributes": ("soft", "machine wash"), "options": ("red", "large"), "price_upper": 40.0,
        "title": "soft cotton shirt", "query": "shirt", "product_category": CATEGORY,
    }  # fmt: skip
    return ShopGoal(**{**fields, **changes})


def test_ratios_are_those_of_thefuzz():
    (case,) = (case for case in golden_cases("webshop") if case["name"] == "token_set_ratio")
    wrong = [row for row in case["inputs"] if token_set_ratio(row[0], row[1]) != row[2]]
    assert wrong == []
    assert len(case["inputs"]) > 100


@pytest.mark.parametrize("case", golden_family("options", topic="webshop"), ids=lambda c: c["name"])
def test_options_match_as_upstream_tests_expect(case):
    assert matched_options(case["inputs"]["chosen"], case["inputs"]["goal"]) == case["expected"]


@pytest.mark.parametrize(
    "case", golden_family("attributes", topic="webshop"), ids=lambda c: c["name"]
)
def test_attributes_match_as_upstream_tests_expect(case):
    bare = {"title": "", "query": "", "product_category": ""}
    described = ShopProduct(**{**bare, **case["inputs"]["product"]})
    assert matched_attributes(described, case["inputs"]["goal"]) == case["expected"]


def test_score_is_the_matched_share():
    all_right = webshop_score(product(), goal(), price=40.0, options=("red", "large"))
    assert all_right == (1.0, 1.0, 2, 2, True)
    # 2 attributes, 1 option and no price of 2 + 2 + 1
    half = webshop_score(product(), goal(), price=40.01, options=("red", "small"))
    assert half == (3 / 5, 1.0, 2, 1, False)


def test_goal_without_price_has_no_price_term():
    scored = webshop_score(product(), goal(price_upper=None), price=1e9, options=("red",))
    assert scored == (3 / 4, 1.0, 2, 1, None)


def test_pairs_of_options_match_by_their_values():
    asked = goal(options=(("color", "red"), ("size", "large")))
    assert webshop_score(product(), asked, price=1, options=("large", "red")).score == 1.0


@pytest.mark.parametrize(
    ("bought", "factor"),
    [
        (product(), 1.0),
        (product(query="coat", product_category="x", title="silk shirt"), 1.0),
        # one noun of the goal's seven, another query and other categories
        (product(query="coat", product_category="x", title="power"), 0.5),
        (product(query="coat", product_category=CATEGORY, title="power"), 1.0),
        (product(title="lamp"), 0.0),
        (product(title=""), 0.0),
    ],
)
def test_type_factor_follows_nouns_query_and_categories(bought, factor):
    title = "soft cotton shirt" if bought.title != "power" else SEVEN_NOUNS
    scored = webshop_score(bought, goal(title=title), price=1, options=("red", "large"))
    assert scored.type_factor == factor
    assert scored.score == factor


def test_title_with_one_noun_of_many_gives_a_tenth():
    wanted = " ".join(f"noun{chr(97 + n)}" for n in range(11)) + " shirt"
    letters = wanted.replace("noun", "thing")
    bought = product(title="shirt", query="shirt")
    assert webshop_score(bought, goal(title=letters), price=1, options=()).type_factor == 0.1


def test_title_shares_are_in_upstreams_bands():
    """The shares of upstream's tests are 0.333, 0.3, 0.15 and below 0.05, by spaCy's nouns."""

    def share(bought, wanted):
        return len(title_nouns(bought) & title_nouns(wanted)) / len(title_nouns(wanted))

    sneakers = "Mens D.O.N. Issue 2 Gca Basketball Sneakers Shoes Casual - Off White"
    peak = (
        "PEAK High Top Mens Basketball Shoes Lou Williams Streetball Master Breathable Non Slip "
        "Outdoor Sneakers"
    )
    knob = "Rusticware 921ORB Kitchen and Bath Cabinet Knob"
    tweezers = (
        "Minkissy 2pcs Stainless Steel Eyebrow Tweezers Blackhead Acne Remover Portable Makeup "
        "Tweezers (Silver)"
    )
    assert share(peak, sneakers) > 0.2
    assert share(CORD, f"{BAR} Home Theater System Subwoofer") > 0.2
    assert 0.1 <= share(CORD, BAR) <= 0.2
    assert share(tweezers, knob) < 0.05


def test_first_color_of_upstreams_list_stands_for_a_value():
    """A dark red is a dark, and matches any other dark but no red."""
    assert matched_options(["dark red"], ["red"]) == 0
    assert matched_options(["dark red"], ["dark wood"]) == 1


def test_goal_without_attributes_has_no_score():
    with pytest.raises(ValueError, match="attributes"):
        webshop_score(product(), goal(attributes=()), price=1, options=())

"""WebArena's evaluators, with cases worked out by hand from upstream's code."""

import json

import pytest

from espalier.config import SplitsConfig
from espalier_environments.web.catalogue import made_site
from espalier_environments.web.config import SiteConfig
from espalier_environments.web.evaluators import (
    Ending,
    is_program_match,
    is_string_match,
    is_url_match,
    score,
    state_after,
)
from espalier_environments.web.website import Website

INITIAL = Website(made_site(SiteConfig(), 0, "train", SplitsConfig())).state()


@pytest.mark.parametrize(
    ("references", "answer", "passes"),
    [
        ({"exact_match": "Quest Band"}, " 'quest band' ", True),
        ({"exact_match": "Quest Band"}, "the quest band", False),
        ({"exact_match": ""}, "", True),
        ({"must_include": ["6"]}, "there are 6 of them", True),
        ({"must_include": ["6"]}, "there are 16 of them", False),  # one character: as a token
        ({"must_include": ["6"]}, "6.5 of them", False),
        ({"must_include": ["6", "a"]}, "16 apples", True),  # several references: anywhere
        ({"must_include": ["16"]}, "116", True),
        ({"must_include": ["Sprite", "Duffle"]}, "SPRITE and a duffle", True),
        ({"must_include": ["Sprite", "Duffle"]}, "sprite", False),
        ({"must_include": ["x"], "exact_match": "y"}, "x", False),
        ({"fuzzy_match": "N/A"}, "n/a", True),
        ({"fuzzy_match": "N/A"}, "there is none", False),
    ],
)
def test_strings_match_as_upstream(references, answer, passes):
    assert is_string_match(references, answer) is passes


@pytest.mark.parametrize(
    ("reference", "url", "passes"),
    [
        ("@/shop/3", "@/shop/3/", True),
        ("@/shop/3", "@/shop/31", True),  # gold in prediction
        ("@/shop/3", "@/shop", False),
        ("@/a |OR| @/b", "@/b", True),
        ("@/issues?status=open", "@/issues?status=open&page=2", True),
        ("@/issues?status=open", "@/issues?status=closed", False),
        ("@/issues?status=open", "@/issues", False),
        ("@/i?s=a |OR| @/i?s=b", "@/i?s=b", True),
    ],
)
def test_addresses_match_as_upstream(reference, url, passes):
    full_reference, full_url = (one.replace("@", "http://site.local") for one in (reference, url))
    assert is_url_match(full_reference, full_url) is passes


@pytest.mark.parametrize(
    ("url", "locator", "required", "passes"),
    [
        ("/account", "document.querySelector('#city').outerText", {"exact_match": "{city}"}, True),
        ("/account", "document.querySelector('#city').outerText", {"exact_match": "x"}, False),
        ("/account", "document.querySelector('#none').outerText", {"exact_match": "{city}"}, False),
        ("/account/edit", 'document.querySelector("[name=city]").value',
         {"exact_match": "{city}"}, True),
        ("/account", "", {"must_include": ["no |OR| {city}"]}, True),
        ("last", "", {"must_include": ["{city}"]}, False),
        ("last", "", {"must_include": ["issues"]}, True),
    ],
)  # fmt: skip
def test_pages_have_what_they_must(url, locator, required, passes):
    city = json.loads(INITIAL)["account"]["city"]
    required = json.loads(json.dumps(required).replace("{city}", city))
    target = {"url": url, "locator": locator, "required_contents": required}
    assert is_program_match([target], Ending("", "/issues", INITIAL)) is passes


def test_evaluators_are_multiplied():
    forms = [["/forum/1/vote", {}]]
    checks = {
        "eval_types": ["string_match", "url_match", "final_state"],
        "reference_answers": {"exact_match": "yes"},
        "reference_url": "http://site.local/forum/1",
        "forms": forms,
    }
    right = Ending("yes", "/forum/1", state_after(INITIAL, forms))
    assert score(checks, right, INITIAL) == 1
    for spoilt in ({"answer": "no"}, {"url": "/forum"}, {"state": INITIAL}):
        parts = {"answer": right.answer, "url": right.url, "state": right.state, **spoilt}
        assert score(checks, Ending(**parts), INITIAL) == 0

import pytest

from espalier.rewards.answers import exact_match, normalize_answer, token_f1
from tests.golden_cases import golden_family

HOTPOT = golden_family("hotpot_answer", topic="rewards")
OWN_RULE = {
    "hotpot_answer/yes_vs_yes_sentence": "yes and no are words like others",
    "hotpot_answer/both_only_articles": "two answers of no words are equal, in F1 as well",
}
"""Cases in which F1 is not HotpotQA's, and why."""


@pytest.mark.parametrize(
    ("answer", "gold"),
    [("São Paulo", "sao paulo"), ("The Gambia", "Gambia"), ("Euro.", "euro"), ("u.s.", "US")],
)
def test_exact_match_ignores_case_accents_articles_and_punctuation(answer, gold):
    assert exact_match(answer, [gold])


@pytest.mark.parametrize("answer", [None, "", "Paris", "Lyons"])
def test_near_misses_are_refused(answer):
    assert not exact_match(answer, ["Lyon"])


def test_f1_counts_shared_words():
    assert token_f1("new york city", ["New York"]) == pytest.approx(0.8)
    assert token_f1(None, ["x"]) == 0.0


def test_normalisation_is_idempotent():
    once = normalize_answer("The Côte d'Ivoire, a!")
    assert normalize_answer(once) == once


@pytest.mark.parametrize("case", HOTPOT, ids=lambda case: case["name"])
def test_exact_match_and_f1_are_those_of_hotpotqa(case):
    prediction, gold = case["inputs"]["prediction"], [case["inputs"]["gold"]]
    assert exact_match(prediction, gold) is case["expected"]["em"]
    if case["name"] not in OWN_RULE:
        assert token_f1(prediction, gold) == pytest.approx(case["expected"]["f1"])

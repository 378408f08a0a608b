import pytest

from espalier.rewards import exact_match, normalize_answer, token_f1


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

"""The section `[reward]`: which terms a profile has, and whether they may stand together."""

import pytest
from pydantic import ValidationError

from espalier.algorithms.shaping import Span, TermContext, require_outcome_dominates
from espalier.config import Profile, outcome_scale, term_context


def profile(reward=None, preset="default", **sections):
    algorithm = {"algorithm": {"preset": preset}}
    return Profile.model_validate({"reward": reward or {}, "training": algorithm, **sections})


def test_own_terms_replace_the_penalty_that_dapo_brings():
    dapo = profile(preset="dapo")
    assert [term.key for term in dapo.reward.terms] == ["overlong"]
    [filtered] = dapo.training.algorithm.filters
    assert (filtered.regenerations, filtered.reads) == (10, "outcomes")
    own = profile({"terms": [{"name": "linear_length"}]}, "dapo")
    assert [term.key for term in own.reward.terms] == ["linear_length"]
    assert profile({"terms": []}, "dapo").reward.terms == ()


def test_weights_of_unpaid_terms_are_refused_by_name():
    def weighted(**weights):
        advantage = {"name": "gdpo", "weights": weights}
        return Profile.model_validate({"training": {"algorithm": {"advantage": advantage}}})

    weighted(outcome=1.0, format=0.5)
    with pytest.raises(ValidationError, match="names form"):
        weighted(outcome=1.0, form=0.5)


def test_a_range_that_ends_below_its_start_is_refused():
    with pytest.raises(ValueError, match="range of price"):
        require_outcome_dominates({"price": Span(0.2, 0.0)}, TermContext(max_tokens=1))


def test_terms_may_not_outweigh_the_outcome():
    heavy = {"terms": [{"name": "form", "weight": 0.6}, {"name": "call_shaping"}]}
    with pytest.raises(ValidationError, match=r"1\.1 .*format 0\.1, form 0\.6, call_shaping 0\.4"):
        profile(heavy)
    profile(heavy, environment={"name": "python_math"})
    profile(heavy | {"outcome": 2.0})
    with pytest.raises(ValidationError, match=r"1\.1"):
        profile(heavy | {"outcome_scale": "unit"}, environment={"name": "python_math"})


def test_a_term_stands_once():
    with pytest.raises(ValidationError, match="majority"):
        profile({"terms": [{"name": "majority"}, {"name": "majority", "weight": 0.2}]})


def test_unit_scale_makes_families_differ_by_one_outcome():
    math = profile({"outcome_scale": "unit"}, environment={"name": "python_math"})
    assert outcome_scale(math) == 0.5
    assert term_context(math).outcome_width == 1.0
    assert term_context(profile(environment={"name": "python_math"})).outcome_width == 2.0

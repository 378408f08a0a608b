"""Filters of groups and tokens, where no upstream's numbers say what they do."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from espalier.algorithms.filters import (
    AdvantageGate,
    DifficultyBand,
    FilterRule,
    GroupMinP,
    GroupTopK,
    GroupTopKAbs,
    GroupTopP,
    HighEntropyTokens,
    ZeroVariance,
)

GROUPS = [[1.0, 0.0], [0.7, 0.7, 0.7], [], [0.0], [0.0, 0.0]]
"""Ragged: mixed, equal, lost, of one, hopeless."""

GROUP_FILTERS = [
    AdvantageGate(),
    DifficultyBand(),
    GroupMinP(),
    GroupTopK(),
    GroupTopKAbs(count=2),
    GroupTopP(),
    GroupTopP(weights="softmax", share=0.5),
    GroupTopP(keep="smallest", weights="softmax", share=0.5),
    ZeroVariance(),
]


def test_skipping_trains_on_what_is_left():
    rule = ZeroVariance()
    assert rule.select(GROUPS) == ((0, 3), frozenset())
    assert rule.regenerations == 0


def test_clamping_keeps_the_group_and_silences_it():
    assert ZeroVariance(action="clamp").select(GROUPS) == ((0, 1, 3, 4), frozenset({1, 4}))


def test_regenerating_asks_the_sampler_for_other_tasks():
    rule = ZeroVariance(action="regenerate", max_regenerations=3)
    assert rule.select(GROUPS) == ((0, 3), frozenset())
    assert rule.regenerations == 3


def test_a_limit_of_regenerations_that_nothing_reads_is_refused():
    with pytest.raises(ValidationError, match="max_regenerations"):
        ZeroVariance(action="skip", max_regenerations=3)


def test_the_band_of_pass_rates_includes_its_ends():
    groups = [[1.0] * passed + [0.0] * (5 - passed) for passed in range(6)]
    assert DifficultyBand(low=0.2, high=0.8).select(groups).kept == (1, 2, 3, 4)


def test_a_trajectory_passes_from_the_success_reward_on():
    assert DifficultyBand(low=0.5, high=0.5, success_reward=0.6).select([[0.5, 0.6]]).kept == (0,)


@pytest.mark.parametrize(
    ("rule", "bounds"),
    [
        (DifficultyBand, {"low": 0.9, "high": 0.1}),
        (AdvantageGate, {"reject_low": 0.1, "reject_high": -0.1}),
    ],
)
def test_an_empty_range_is_refused(rule, bounds):
    with pytest.raises(ValidationError, match="above"):
        rule(**bounds)


def test_min_p_of_the_smallest_keeps_scores_near_it():
    groups = [[0.0, 1.0], [0.0, 2.0], [0.0, 1.2]]
    assert GroupMinP(keep="smallest", ratio=0.8).select(groups).kept == (0, 2)


def test_first_ragen_keeps_nothing_if_the_fraction_rounds_to_zero():
    groups = [[0.0, 1.0], [0.0, 2.0]]
    assert GroupTopK(fraction=0.25, at_least=0).select(groups).kept == ()
    assert GroupTopK(fraction=0.25).select(groups).kept == (1,)


@pytest.mark.parametrize("rule", GROUP_FILTERS, ids=repr)
@settings(deadline=None)
@given(
    groups=st.lists(st.lists(st.sampled_from([-0.1, 0.0, 0.3, 0.7, 1.0]), max_size=4), max_size=5)
)
def test_a_filter_chooses_each_group_at_most_once(rule, groups):
    kept, silenced = rule.select(groups)
    assert len(set(kept)) == len(kept)
    assert set(kept) <= set(range(len(groups)))
    assert silenced <= set(kept)


def test_a_token_filter_never_lets_a_masked_token_in():
    mask_BT = torch.tensor([[True, True, False], [True, False, False]])
    entropy_BT = torch.tensor([[0.1, 0.2, 9.0], [0.3, 9.0, 9.0]])
    left_BT = HighEntropyTokens(share=0.4).masked(mask_BT, entropy_BT)
    assert left_BT.tolist() == [[False, False, False], [True, False, False]]


def test_without_tokens_there_is_nothing_to_filter():
    mask_BT = torch.zeros(2, 3, dtype=torch.bool)
    assert not HighEntropyTokens().masked(mask_BT, torch.rand(2, 3)).any()


@pytest.mark.parametrize("rule", [*GROUP_FILTERS, HighEntropyTokens()], ids=repr)
def test_a_filter_survives_the_profile(rule):
    assert TypeAdapter(FilterRule).validate_json(rule.model_dump_json()) == rule

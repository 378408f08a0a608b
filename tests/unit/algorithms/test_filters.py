"""Filters of groups and tokens, where no upstream's numbers say what they do."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from espalier.algorithms import filters

GROUPS = [[1.0, 0.0], [0.7, 0.7, 0.7], [], [0.0], [0.0, 0.0]]
"""Ragged: mixed, equal, lost, of one, hopeless."""

GROUP_FILTERS = [
    filters.AdvantageGate(),
    filters.DifficultyBand(),
    filters.GroupMinP(),
    filters.GroupTopK(),
    filters.GroupTopKAbs(count=2),
    filters.GroupTopP(),
    filters.GroupTopP(weights="softmax", share=0.5),
    filters.GroupTopP(keep="smallest", weights="softmax", share=0.5),
    filters.ZeroVariance(),
]


def test_groups_without_variance_are_skipped_silenced_or_sampled_anew():
    assert filters.ZeroVariance().select(GROUPS) == ((0, 3), frozenset())
    assert filters.ZeroVariance().regenerations == 0
    assert filters.ZeroVariance(action="clamp").select(GROUPS) == ((0, 1, 3, 4), frozenset({1, 4}))
    again = filters.ZeroVariance(action="regenerate", max_regenerations=3)
    assert again.select(GROUPS) == ((0, 3), frozenset())
    assert again.regenerations == 3
    with pytest.raises(ValidationError, match="max_regenerations"):
        filters.ZeroVariance(action="skip", max_regenerations=3)


def test_the_band_of_pass_rates_includes_its_ends():
    groups = [[1.0] * passed + [0.0] * (5 - passed) for passed in range(6)]
    assert filters.DifficultyBand(low=0.2, high=0.8).select(groups).kept == (1, 2, 3, 4)
    half = filters.DifficultyBand(low=0.5, high=0.5, success_reward=0.6)
    assert half.select([[0.5, 0.6]]).kept == (0,), "it passes from the success reward on"


@pytest.mark.parametrize(
    ("rule", "bounds"),
    [
        (filters.DifficultyBand, {"low": 0.9, "high": 0.1}),
        (filters.AdvantageGate, {"reject_low": 0.1, "reject_high": -0.1}),
    ],
)
def test_an_empty_range_is_refused(rule, bounds):
    with pytest.raises(ValidationError, match="above"):
        rule(**bounds)


def test_min_p_of_the_smallest_keeps_scores_near_it():
    groups = [[0.0, 1.0], [0.0, 2.0], [0.0, 1.2]]
    assert filters.GroupMinP(keep="smallest", ratio=0.8).select(groups).kept == (0, 2)


def test_first_ragen_keeps_nothing_if_the_fraction_rounds_to_zero():
    groups = [[0.0, 1.0], [0.0, 2.0]]
    assert filters.GroupTopK(fraction=0.25, at_least=0).select(groups).kept == ()
    assert filters.GroupTopK(fraction=0.25).select(groups).kept == (1,)


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
    left_BT = filters.HighEntropyTokens(share=0.4).masked(mask_BT, entropy_BT)
    assert left_BT.tolist() == [[False, False, False], [True, False, False]]
    assert not filters.HighEntropyTokens().masked(torch.zeros_like(mask_BT), entropy_BT).any()

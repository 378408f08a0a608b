"""What holds for every way to give credit, and what for those that compare within the group."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st

from espalier.algorithms.advantages import (
    AdvantageRule,
    DrGrpo,
    Gae,
    Gdpo,
    Gpg,
    Grpo,
    GrpoLengthPenalty,
    GrpoPassK,
    LengthAdaptiveGae,
    MaxRl,
    Opo,
    OptimalTokenBaseline,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    ReMax,
    Rloo,
    Spo,
    TurnDiscounted,
    TurnGae,
    VTrace,
)
from tests.factories.credit_batches import credit_batches

CENTRED = [
    Grpo(),
    Grpo(scale="batch", std_eps=1e-4),
    Grpo(std_ddof=0, std_floor=1e-3, group_of_one="zero"),
    DrGrpo(),
    Rloo(),
    Gpg(),
    MaxRl(),
]
"""Of each group of two or more, the advantages sum to 0."""

GROUP_RELATIVE = [
    *CENTRED,
    Rloo(normalize=True, group_of_one="zero"),
    Opo(),
    GrpoPassK(),
    GrpoPassK(scale="none"),
    ReinforcePlusPlusBaseline(),
    Gdpo(weights={"outcome": 1.0, "square": 0.5}),
]

ALL = [
    *GROUP_RELATIVE,
    GrpoLengthPenalty(),
    ReinforcePlusPlus(gamma=0.9),
    ReinforcePlusPlus(gamma=0.9, at_observations="reset"),
    ReMax(),
    Spo(prediction_weight=2.0),
    OptimalTokenBaseline(),
    OptimalTokenBaseline(align="columns", alone="own_return"),
    Gae(gamma=0.99, gae_lambda=0.95),
    Gae(gae_lambda=0.5, whitened=False),
    LengthAdaptiveGae(alpha=0.5),
    TurnGae(gamma=0.9, gae_lambda=0.8),
    TurnDiscounted(),
    TurnDiscounted(compared="same_turn", scale="none"),
    VTrace(gamma=0.9, trace_lambda=0.8),
]


SHIFTABLE = [rule for rule in GROUP_RELATIVE if not isinstance(rule, Gpg | MaxRl | Gdpo)]

OUTCOMES_ALONE = [rule for rule in GROUP_RELATIVE if not isinstance(rule, Gdpo)]

NUMBERS_OF_TOKENS = (
    "rewards_BT",
    "values_BT",
    "behavior_logprobs_BT",
    "proximal_logprobs_BT",
    "sum_pi_squared_BT",
)

holds = settings(max_examples=25, deadline=None)
"""Every example goes through all rules."""


def each(rules):
    """Tells which rule it was that failed."""
    for rule in rules:
        note(repr(rule))
        yield rule


def assert_same(ours, theirs):
    """Up to the rounding of another order of summation."""
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def with_siblings(batch):
    """Without rows that have no token, whose outcome is 0 whatever it was meant to be."""
    batch = batch.rows(batch.action_mask_BT.any(dim=1))
    size_B = (batch.groups_B[:, None] == batch.groups_B).sum(dim=1)
    return batch.rows(size_B > 1)


def test_every_rule_of_the_union_is_held_to_these_properties():
    rules = get_args(get_args(AdvantageRule)[0])
    assert {type(rule) for rule in ALL} == set(rules)


@holds
@given(batch=credit_batches())
def test_no_credit_outside_the_mask(batch):
    for rule in each(ALL):
        for credit_BT in rule.credit(batch):
            assert credit_BT.shape == batch.rewards_BT.shape
            assert credit_BT.isfinite().all()
            assert (credit_BT[~batch.action_mask_BT] == 0).all()


@holds
@given(batch=credit_batches(), seed=st.integers(0, 2**16))
def test_permuted_trajectories_have_permuted_credit(batch, seed):
    noise = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(batch.groups_B), generator=noise)
    for rule in each(ALL):
        expected = [credit_BT[order] for credit_BT in rule.credit(batch)]
        assert_same(rule.credit(batch.rows(order)), expected)


@holds
@given(batch=credit_batches(), seed=st.integers(0, 2**16))
def test_permuted_groups_change_nothing(batch, seed):
    names_P = torch.randperm(100, generator=torch.Generator().manual_seed(seed))
    renamed = replace(batch, groups_B=names_P[batch.groups_B])
    for rule in each(ALL):
        assert_same(rule.credit(renamed), rule.credit(batch))


@holds
@given(batch=credit_batches(), width=st.integers(1, 3))
def test_padding_changes_nothing(batch, width):
    def padded(values_BT, fill):
        return torch.nn.functional.pad(values_BT, (0, width), value=fill)

    wider = replace(
        batch,
        action_mask_BT=padded(batch.action_mask_BT, 0),
        turns_BT=padded(batch.turns_BT, -1),
        **{name: padded(getattr(batch, name), 0.3) for name in NUMBERS_OF_TOKENS},
    )
    for rule in each(ALL):
        expected = [padded(credit_BT, 0.0) for credit_BT in rule.credit(batch)]
        assert_same(rule.credit(wider), expected)


@holds
@given(batch=credit_batches())
def test_nothing_is_read_outside_the_mask(batch):
    broken = {
        name: getattr(batch, name).masked_fill(~batch.action_mask_BT, float("nan"))
        for name in NUMBERS_OF_TOKENS
    }
    for rule in each(ALL):
        assert_same(rule.credit(replace(batch, **broken)), rule.credit(batch))


@holds
@given(batch=credit_batches(min_group=2, equal_rewards=True), tenths=st.integers(1, 9))
def test_equal_rewards_give_exactly_zero(batch, tenths):
    batch = with_siblings(batch)
    # tenths have no exact float, so that the mean of equal ones may differ from them
    batch = replace(batch, rewards_BT=batch.rewards_BT.float() * tenths / 10)
    for rule in each(GROUP_RELATIVE):
        assert (rule.credit(batch).advantages_BT == 0).all()


@holds
@given(batch=credit_batches(min_group=2))
def test_credit_of_a_group_sums_to_zero(batch):
    batch = with_siblings(batch)
    tokens_B = batch.action_mask_BT.sum(dim=1)
    for rule in each(CENTRED):
        advantages_B = rule.credit(batch).advantages_BT.sum(dim=1) / tokens_B
        for group in batch.groups_B.unique():
            total = advantages_B[batch.groups_B == group].sum()
            assert total == pytest.approx(0.0, abs=1e-6)


@holds
@given(batch=credit_batches(min_group=2))
def test_opo_sums_to_zero_over_the_tokens_of_a_group(batch):
    batch = with_siblings(batch)
    advantages_BT = Opo().credit(batch).advantages_BT
    for group in batch.groups_B.unique():
        assert advantages_BT[batch.groups_B == group].sum() == pytest.approx(0.0, abs=1e-9)


@holds
@given(batch=credit_batches(min_group=2), quarters=st.integers(-8, 8))
def test_a_constant_added_to_every_outcome_changes_nothing(batch, quarters):
    batch = with_siblings(batch)
    first_BT = batch.action_mask_BT & (batch.action_mask_BT.cumsum(dim=1) == 1)
    shifted = replace(batch, rewards_BT=batch.rewards_BT + first_BT * quarters / 4)
    for rule in each(SHIFTABLE):
        assert_same(rule.credit(shifted), rule.credit(batch))


@holds
@given(batch=credit_batches(), place=st.integers(0, 15))
def test_a_trajectory_that_could_not_be_scored_takes_no_part(batch, place):
    batch = batch.rows(batch.action_mask_BT.any(dim=1))
    lost_B = torch.arange(len(batch.groups_B)) == place % max(1, len(batch.groups_B))
    rewards_BT = batch.rewards_BT.masked_fill(lost_B[:, None], float("nan"))
    for rule in each(OUTCOMES_ALONE):
        advantages_BT = rule.credit(replace(batch, rewards_BT=rewards_BT)).advantages_BT
        assert (advantages_BT[lost_B] == 0).all()
        others_BT = rule.credit(batch.rows(~lost_B)).advantages_BT
        assert_same([advantages_BT[~lost_B]], [others_BT])

"""What holds for every way to give credit, and what for those that compare within the group."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st

from espalier.algorithms import advantages as ways
from tests.factories.credit_batches import credit_batches

CENTRED = [
    ways.Grpo(),
    ways.Grpo(scale="batch", std_eps=1e-4),
    ways.Grpo(std_ddof=0, std_floor=1e-3, group_of_one="zero"),
    ways.DrGrpo(),
    ways.Rloo(),
    ways.Gpg(),
    ways.MaxRl(),
]
"""Of each group of two or more, the advantages sum to 0."""

GROUP_RELATIVE = [
    *CENTRED,
    ways.Rloo(normalize=True, group_of_one="zero"),
    ways.Opo(),
    ways.GrpoPassK(),
    ways.GrpoPassK(scale="none"),
    ways.ReinforcePlusPlusBaseline(),
    ways.Gdpo(weights={"outcome": 1.0, "square": 0.5}),
]

ALL = [
    *GROUP_RELATIVE,
    ways.GrpoLengthPenalty(),
    ways.ReinforcePlusPlus(gamma=0.9),
    ways.ReinforcePlusPlus(gamma=0.9, at_observations="reset"),
    ways.ReMax(),
    ways.Spo(prediction_weight=2.0),
    ways.OptimalTokenBaseline(),
    ways.OptimalTokenBaseline(align="columns", alone="own_return"),
    ways.Gae(gamma=0.99, gae_lambda=0.95),
    ways.Gae(gae_lambda=0.5, whitened=False),
    ways.LengthAdaptiveGae(alpha=0.5),
    ways.TurnGae(gamma=0.9, gae_lambda=0.8),
    ways.TurnDiscounted(),
    ways.TurnDiscounted(compared="same_turn", scale="none"),
    ways.VTrace(gamma=0.9, trace_lambda=0.8),
]


SHIFTABLE = [
    rule for rule in GROUP_RELATIVE if not isinstance(rule, ways.Gpg | ways.MaxRl | ways.Gdpo)
]

OUTCOMES_ALONE = [rule for rule in GROUP_RELATIVE if not isinstance(rule, ways.Gdpo)]

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
    rules = get_args(get_args(ways.AdvantageRule)[0])
    assert {type(rule) for rule in ALL} == set(rules)


@holds
@given(batch=credit_batches(), seed=st.integers(0, 2**16))
def test_permuted_trajectories_and_groups_have_permuted_credit(batch, seed):
    noise = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(batch.groups_B), generator=noise)
    renamed = replace(batch, groups_B=torch.randperm(100, generator=noise)[batch.groups_B])
    for rule in each(ALL):
        expected = [credit_BT[order] for credit_BT in rule.credit(batch)]
        assert_same(rule.credit(renamed.rows(order)), expected)


@holds
@given(batch=credit_batches(), width=st.integers(0, 3))
def test_tokens_outside_the_mask_are_not_read_nor_credited(batch, width):
    def padded(values_BT, fill):
        return torch.nn.functional.pad(values_BT, (0, width), value=fill)

    mask_BT = padded(batch.action_mask_BT, 0)
    broken = replace(
        batch,
        action_mask_BT=mask_BT,
        turns_BT=padded(batch.turns_BT, -1),
        **{
            name: padded(getattr(batch, name), 0.0).masked_fill(~mask_BT, float("nan"))
            for name in NUMBERS_OF_TOKENS
        },
    )
    for rule in each(ALL):
        expected = rule.credit(batch)
        for credit_BT in expected:
            assert credit_BT.shape == batch.rewards_BT.shape
            assert credit_BT.isfinite().all()
            assert (credit_BT[~batch.action_mask_BT] == 0).all()
        assert_same(rule.credit(broken), [padded(credit_BT, 0.0) for credit_BT in expected])


@holds
@given(batch=credit_batches(min_group=2, equal_rewards=True), tenths=st.integers(1, 9))
def test_equal_rewards_give_exactly_zero(batch, tenths):
    batch = with_siblings(batch)
    # tenths have no exact float, so that the mean of equal ones may differ from them
    batch = replace(batch, rewards_BT=batch.rewards_BT.float() * tenths / 10)
    for rule in each(GROUP_RELATIVE):
        assert (rule.credit(batch).advantages_BT == 0).all()


@holds
@given(batch=credit_batches(min_group=2), quarters=st.integers(-8, 8))
def test_credit_sums_to_zero_whatever_all_outcomes_have_in_common(batch, quarters):
    batch = with_siblings(batch)
    tokens_B = batch.action_mask_BT.sum(dim=1)
    for rule in each(CENTRED):
        advantages_B = rule.credit(batch).advantages_BT.sum(dim=1) / tokens_B
        for group in batch.groups_B.unique():
            total = advantages_B[batch.groups_B == group].sum()
            assert total == pytest.approx(0.0, abs=1e-6)
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

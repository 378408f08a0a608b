"""Rules with a critic, by hand: one trajectory of two turns with an observation between them.

column   0     1     2     3     4
turn     0     0     -     1     .
value   0.5   0.25   9    0.75   9
reward        1.0         2.0
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from espalier.algorithms.advantages import Gae, LengthAdaptiveGae, TurnGae
from espalier.algorithms.batch import CreditBatch
from tests.factories.credit_batches import credit_batches

BATCH = CreditBatch(
    rewards_BT=torch.tensor([[0.0, 1.0, 7.0, 2.0, 7.0]], dtype=torch.float64),
    action_mask_BT=torch.tensor([[True, True, False, True, False]]),
    groups_B=torch.tensor([0]),
    turns_BT=torch.tensor([[0, 0, -1, 1, -1]]),
    values_BT=torch.tensor([[0.5, 0.25, 9.0, 0.75, 9.0]], dtype=torch.float64),
)


def assert_credit(rule, *, advantages, returns):
    credit = rule.credit(BATCH)
    assert credit.advantages_BT[0].tolist() == pytest.approx(advantages)
    assert credit.returns_BT[0].tolist() == pytest.approx(returns)


def test_gae_steps_over_the_observation():
    # deltas: 0 + 0.5 * 0.25 - 0.5, 1 + 0.5 * 0.75 - 0.25, 2 - 0.75; decay 0.5 * 0.5
    last, middle = 1.25, 1.125 + 0.25 * 1.25
    first = -0.375 + 0.25 * middle
    assert_credit(
        Gae(gamma=0.5, gae_lambda=0.5, whitened=False),
        advantages=[first, middle, 0, last, 0],
        returns=[first + 0.5, middle + 0.25, 0, 2.0, 0],
    )


def test_turn_gae_uses_the_value_before_a_turns_first_token():
    # turn rewards 1 and 2, values 0.5 and 0.75
    second = 2 - 0.75
    first = 1 + 0.5 * 0.75 - 0.5 + 0.25 * second
    assert_credit(
        TurnGae(gamma=0.5, gae_lambda=0.5, whitened=False),
        advantages=[first, first, 0, second, 0],
        returns=[first + 0.5, first + 0.5, 0, 2.0, 0],
    )


@settings(max_examples=25, deadline=None)
@given(batch=credit_batches())
def test_turn_gae_of_one_token_turns_is_token_gae(batch):
    mask_BT = batch.action_mask_BT
    single = replace(batch, turns_BT=(mask_BT.cumsum(dim=1) - 1).masked_fill(~mask_BT, -1))
    discounts = {"gamma": 0.9, "gae_lambda": 0.7}
    for ours, theirs in zip(
        TurnGae(**discounts).credit(single), Gae(**discounts).credit(single), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_length_adaptive_lambda_grows_with_the_trajectory():
    lengths = (4, 20, 40, 1000)
    mask_BT = torch.arange(1000) < torch.tensor(lengths)[:, None]
    last_BT = mask_BT & (mask_BT.cumsum(dim=1) == mask_BT.sum(dim=1, keepdim=True))
    batch = CreditBatch(
        rewards_BT=last_BT.double(),
        action_mask_BT=mask_BT,
        groups_B=torch.arange(4),
        values_BT=torch.zeros(mask_BT.shape, dtype=torch.float64),
    )
    for least, lambdas in ((0.0, (0.0, 0.0, 0.5, 0.98)), (0.95, (0.95, 0.95, 0.95, 0.98))):
        rule = LengthAdaptiveGae(alpha=0.05, min_lambda=least, whitened=False)
        credit = rule.credit(batch)
        for row, (length, gae_lambda) in enumerate(zip(lengths, lambdas, strict=True)):
            # without values the reward reaches the first token as lambda^(l - 1)
            found = credit.advantages_BT[row, length - 2 : length].tolist()
            assert found == pytest.approx([gae_lambda, 1.0])
    assert (credit.returns_BT == mask_BT).all(), "the critic's lambda is 1"


def test_whitening_leaves_the_returns_alone():
    plain, whitened = (Gae(whitened=on).credit(BATCH) for on in (False, True))
    assert torch.equal(plain.returns_BT, whitened.returns_BT)
    advantages_N = whitened.advantages_BT[BATCH.action_mask_BT]
    assert advantages_N.mean() == pytest.approx(0.0, abs=1e-9)
    assert advantages_N.std() == pytest.approx(1.0, abs=1e-6)

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
from hypothesis import strategies as st

from espalier.algorithms.advantages import Gae, LengthAdaptiveGae, TurnDiscounted, TurnGae
from espalier.algorithms.batch import CreditBatch
from espalier.algorithms.off_policy import VTrace
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


TURNS = CreditBatch(
    rewards_BT=torch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 5.0, 9.0]]),
    action_mask_BT=torch.tensor([[True, True, False, True], [True, True, True, False]]),
    groups_B=torch.tensor([3, 3]),
    turns_BT=torch.tensor([[0, 0, -1, 1], [0, 0, 0, -1]]),
)


def test_returns_are_discounted_by_turn_and_compared_with_other_turns():
    by_deviation = TurnDiscounted(gamma=0.5).credit(TURNS)
    assert by_deviation.returns_BT.tolist() == [[2.0, 2.0, 0.0, 2.0], [5.0, 5.0, 5.0, 0.0]]
    # returns 2, 2 and 5: mean 3, deviation sqrt(3)
    assert by_deviation.advantages_BT[1, 0].item() == pytest.approx(2 / 3**0.5, abs=1e-5)
    assert by_deviation.advantages_BT[0, 0].item() == pytest.approx(-1 / 3**0.5, abs=1e-5)
    with_all = TurnDiscounted(gamma=0.5, scale="none").credit(TURNS).advantages_BT
    assert with_all.tolist() == [[-1.0, -1.0, 0.0, -1.0], [2.0, 2.0, 2.0, 0]]
    same = TurnDiscounted(gamma=0.5, scale="none", compared="same_turn").credit(TURNS)
    expected = [[-1.5, -1.5, 0.0, 0.0], [1.5, 1.5, 1.5, 0.0]]
    assert same.advantages_BT.tolist() == expected, "the second turn stands alone"


def some_batch(seed):
    generator = torch.Generator().manual_seed(seed)
    shape = tuple(torch.randint(1, 8, (2,), generator=generator).tolist())
    rewards, values, log_ratios = torch.randn(3, *shape, generator=generator).double()
    return CreditBatch(
        rewards_BT=rewards,
        action_mask_BT=torch.rand(shape, generator=generator) < 0.7,
        groups_B=torch.arange(len(rewards)),
        values_BT=values,
        behavior_logprobs_BT=torch.full_like(rewards, -2),
        proximal_logprobs_BT=log_ratios - 2,
    )


def defined(rule, rewards, values, ratios):
    """Espeholt et al. 2018, eq. 1, for one trajectory without holes: sums of products, no loop
    carried backwards. Returns targets and advantages."""
    steps, targets = len(rewards), []
    rho = [min(rule.rho_bound, ratio) for ratio in ratios]
    c = [rule.trace_lambda * min(rule.c_bound, ratio) for ratio in ratios]
    ahead = [*values[1:], 0.0]
    for s in range(steps):
        target = values[s]
        for t in range(s, steps):
            product = 1.0
            for i in range(s, t):
                product *= c[i]
            delta = rho[t] * (rewards[t] + rule.gamma * ahead[t] - values[t])
            target += rule.gamma ** (t - s) * product * delta
        targets.append(target)
    after = [*targets[1:], 0.0]
    advantages = [rho[s] * (rewards[s] + rule.gamma * after[s] - values[s]) for s in range(steps)]
    return targets, advantages


@given(
    seed=st.integers(0, 2**32 - 1),
    gamma=st.floats(0.5, 1),
    bounds=st.tuples(st.floats(0.3, 3), st.floats(0.3, 3)),
    trace_lambda=st.floats(0, 1),
)
@settings(max_examples=60, deadline=None)
def test_v_trace_is_the_sum_that_defines_it(seed, gamma, bounds, trace_lambda):
    rule = VTrace(gamma=gamma, rho_bound=bounds[0], c_bound=bounds[1], trace_lambda=trace_lambda)
    batch = some_batch(seed)
    credit = rule.credit(batch)
    ratios_BT = (batch.proximal_logprobs_BT - batch.behavior_logprobs_BT).exp()
    for row, here in enumerate(batch.action_mask_BT):
        tokens = (batch.rewards_BT[row], batch.values_BT[row], ratios_BT[row])
        targets, advantages = defined(rule, *(x[here].tolist() for x in tokens))
        assert credit.returns_BT[row][here].tolist() == pytest.approx(targets)
        assert credit.advantages_BT[row][here].tolist() == pytest.approx(advantages)
        assert not credit.returns_BT[row][~here].any()
        assert not credit.advantages_BT[row][~here].any()

"""V-trace by hand, and against the sum that defines it, written out term by term."""

from dataclasses import replace
from math import log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.algorithms.advantages import Gae
from espalier.algorithms.batch import CreditBatch
from espalier.algorithms.off_policy import VTrace

seeds = st.integers(0, 2**32 - 1)


def credit_batch(rewards, values, log_ratios, mask=None):
    rewards, values, log_ratios = (
        torch.tensor(x, dtype=torch.float64) for x in (rewards, values, log_ratios)
    )
    return CreditBatch(
        rewards_BT=rewards,
        action_mask_BT=torch.ones_like(rewards).bool() if mask is None else torch.tensor(mask),
        groups_B=torch.arange(len(rewards)),
        values_BT=values,
        behavior_logprobs_BT=torch.full_like(rewards, -2),
        proximal_logprobs_BT=log_ratios - 2,
    )


def some_batch(seed):
    generator = torch.Generator().manual_seed(seed)
    shape = tuple(torch.randint(1, 8, (2,), generator=generator).tolist())
    numbers = [torch.randn(shape, generator=generator).tolist() for _ in range(3)]
    mask = torch.rand(shape, generator=generator) < 0.7
    return credit_batch(*numbers, mask=mask.tolist())


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


def test_v_trace_by_hand():
    batch = credit_batch([[0, 0, 1]], [[0.5, 0.25, 0.5]], [[log(2), log(0.5), 0]])
    credit = VTrace().credit(batch)
    # last: 0.5 + 1 (1 - 0.5); middle: 0.25 + 0.5 (0.5 - 0.25) + 0.5 (1 - 0.5); first, ratio 2
    # truncated to 1: 0.5 + (0.25 - 0.5) + (0.625 - 0.25)
    torch.testing.assert_close(
        credit.returns_BT, torch.tensor([[0.625, 0.625, 1.0]], dtype=torch.float64)
    )
    # ratio times (reward + corrected next value - value)
    torch.testing.assert_close(
        credit.advantages_BT,
        torch.tensor([[0.125, 0.5 * 0.75, 0.5]], dtype=torch.float64),
    )


@given(
    seed=seeds,
    gamma=st.floats(0.5, 1),
    bounds=st.tuples(st.floats(0.3, 3), st.floats(0.3, 3)),
    trace_lambda=st.floats(0, 1),
)
@settings(max_examples=60, deadline=None)
def test_v_trace_is_the_sum_that_defines_it(seed, gamma, bounds, trace_lambda):
    rule = VTrace(gamma=gamma, rho_bound=bounds[0], c_bound=bounds[1], trace_lambda=trace_lambda)
    batch = some_batch(seed)
    credit = rule.credit(batch)
    for row, here in enumerate(batch.action_mask_BT):
        ratios = (batch.proximal_logprobs_BT - batch.behavior_logprobs_BT)[row].exp()
        tokens = (batch.rewards_BT[row], batch.values_BT[row], ratios)
        targets, advantages = defined(rule, *(x[here].tolist() for x in tokens))
        assert credit.returns_BT[row][here].tolist() == pytest.approx(targets)
        assert credit.advantages_BT[row][here].tolist() == pytest.approx(advantages)
        assert not credit.returns_BT[row][~here].any()
        assert not credit.advantages_BT[row][~here].any()


@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_what_stands_on_an_observation_changes_no_target(seed):
    batch = some_batch(seed)
    nan = float("nan")
    names = ("rewards_BT", "values_BT", "behavior_logprobs_BT", "proximal_logprobs_BT")
    junk = {name: getattr(batch, name).masked_fill(~batch.action_mask_BT, nan) for name in names}
    for plain, other in zip(
        VTrace().credit(batch), VTrace().credit(replace(batch, **junk)), strict=True
    ):
        assert torch.equal(plain, other)


@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_on_policy_targets_equal_gae_returns_with_lambda_1(seed):
    batch = some_batch(seed)
    batch = replace(batch, proximal_logprobs_BT=batch.behavior_logprobs_BT)
    gae = Gae(gamma=1.0, gae_lambda=1.0).credit(batch)
    torch.testing.assert_close(VTrace().credit(batch).returns_BT, gae.returns_BT)

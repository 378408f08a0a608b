"""Losses by hand, where no golden vector holds them, and what their parameters refuse."""

from dataclasses import replace
from math import exp, log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from espalier.algorithms.aggregation import aggregate
from espalier.algorithms.batch import Totals
from espalier.algorithms.losses import Cispo, ClipCov, Dpo, KlCov, LossRule, PpoClip, ValueLoss
from espalier.algorithms.regularizers import KlPenalty, token_entropy
from tests.factories.loss_batches import differentiate, loss_batch, totals_of


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


def everywhere(values):
    return torch.ones_like(values).bool()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token_mean", (1 + 2 + 3 + 10) / 4),
        ("seq_mean_token_mean", ((1 + 2 + 3) / 3 + 10) / 2),
        ("row_mean_token_mean", ((1 + 2 + 3) / 3 + 10 + 0) / 3),
        ("seq_mean_token_sum", (1 + 2 + 3 + 10) / 2),
        ("row_mean_token_sum", (1 + 2 + 3 + 10) / 3),
        ("constant", (1 + 2 + 3 + 10) / (3 * 5)),
        ("token_sum_norm", (1 + 2 + 3 + 10) / 5),
    ],
)
def test_an_aggregation_leaves_out_or_counts_the_row_without_tokens(mode, expected):
    mask = torch.tensor([[1, 1, 1], [0, 1, 0], [0, 0, 0]]).bool()
    loss = rows([1, 2, 3], [99, 10, 99], [99, 99, 99])
    assert aggregate(mode, loss, mask, totals_of(mask, max_tokens=5)).item() == pytest.approx(
        expected
    )


def test_a_wide_ratio_is_clipped_only_in_its_direction():
    policy = torch.log(rows([1.5, 1.5, 0.5, 0.5, 5.0]))
    advantages = rows([1, -1, 1, -1, -1])
    batch = loss_batch(policy, torch.zeros_like(policy), advantages, everywhere(policy))
    result = PpoClip(clip_low=0.2, clip_high=0.28, dual_clip=3).loss(batch, "token_mean")
    assert result.loss.item() == pytest.approx((-1.28 + 1.5 - 0.5 + 0.8 + 3) / 5)
    assert result.metrics["clipped_share"].item() == pytest.approx(2 / 5)
    assert result.metrics["clipped_high_share"].item() == pytest.approx(1 / 5)
    assert result.metrics["dual_clipped_share"].item() == pytest.approx(1 / 5)


@given(log_ratio=st.floats(-3, 3), advantage=st.floats(-2, 2), delta=st.floats(1.3, 4))
@settings(max_examples=50, deadline=None)
def test_the_two_sided_cap_of_trl_is_the_dual_clip(log_ratio, advantage, delta):
    policy, advantages = rows([log_ratio]), rows([advantage])
    batch = loss_batch(policy, torch.zeros_like(policy), advantages, everywhere(policy))
    rule = PpoClip(clip_high=0.28, dual_clip=delta, log_ratio_bound=None)
    ours, gradient = differentiate(lambda b: rule.loss(b, "token_mean"), batch)
    policy.requires_grad_()
    ratio = policy.exp()
    capped = torch.min(ratio.clamp(max=delta) * advantages, ratio.clamp(0.8, 1.28) * advantages)
    (expected,) = torch.autograd.grad(-capped.sum(), policy)
    torch.testing.assert_close(ours.loss, -capped.sum().detach())
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize(("convention", "share"), [("trl", 1 / 4), ("verl", 2 / 4)])
def test_cispo_counts_clipped_tokens_as_its_upstream_does(convention, share):
    """TRL counts ratios above the bound where the advantage is positive, verl all that changed."""
    policy, advantages = rows([2.0, 2.0, 0.0, 0.0]), rows([1, -1, 1, -1])
    batch = loss_batch(policy, torch.zeros_like(policy), advantages, everywhere(policy))
    result = Cispo(convention=convention, clip_high=5.0).loss(batch, "token_mean")
    assert result.metrics["clipped_share"].item() == pytest.approx(share)


def test_dpo_by_hand():
    policy = rows([-1.0, -2.0], [-1.0, -4.0], [-3.0, -3.0])
    reference = rows([-2.0, -2.5], [-1.5, -3.0], [-9.0, -9.0])
    mask = torch.tensor([[1, 1], [1, 1], [0, 0]]).bool()
    batch = loss_batch(
        policy,
        policy,
        torch.zeros_like(policy),
        mask,
        reference_logprobs_BT=reference,
        pairs_P2=torch.tensor([[0, 1], [2, 0]]),
        totals=totals_of(mask, pairs=2),
    )
    result, gradient = differentiate(lambda b: Dpo(beta=0.5).loss(b, "seq_mean_token_sum"), batch)
    # margins: 1 + 0.5 = 1.5, 0.5 - 1 = -0.5, and 0 of the row without tokens
    first, second = 0.5 * (1.5 + 0.5), 0.5 * (0 - 1.5)
    losses = log(1 + exp(-first)), log(1 + exp(-second))
    assert result.loss.item() == pytest.approx(sum(losses) / 2)
    assert result.metrics["pair_accuracy"].item() == pytest.approx(1 / 2)
    assert result.metrics["pair_margin"].item() == pytest.approx((first + second) / 2)
    push = 0.5 / 2 * (1 / (1 + exp(first))), 0.5 / 2 * (1 / (1 + exp(second)))
    expected = rows([push[1] - push[0]] * 2, [push[0]] * 2, [0, 0])
    torch.testing.assert_close(gradient, expected)


def test_dpo_of_a_hopeless_pair_does_not_overflow():
    policy = rows([-3000.0], [-1.0])
    batch = loss_batch(
        policy,
        policy,
        torch.zeros_like(policy),
        everywhere(policy),
        reference_logprobs_BT=rows([-1.0], [-3000.0]),
        pairs_P2=torch.tensor([[0, 1]]),
        totals=totals_of(everywhere(policy), pairs=1),
    )
    result, gradient = differentiate(lambda b: Dpo(beta=1).loss(b, "seq_mean_token_sum"), batch)
    assert result.loss.item() == pytest.approx(2 * 2999)
    torch.testing.assert_close(gradient, rows([-1.0], [1.0]))


def test_kl_cov_penalizes_the_exact_number_of_equal_tokens():
    policy = torch.full((2, 5), -1.0, dtype=torch.float64)
    batch = loss_batch(policy, policy, torch.ones_like(policy), everywhere(policy))
    result = KlCov(share=0.3).loss(batch, "token_mean")
    assert result.metrics["penalized_share"].item() == pytest.approx(0.3)


def test_kl_cov_penalizes_the_log_ratio_of_the_highest_covariance():
    # means: log-probs -1, advantages 1; covariances 1 * 2, -0.5 * -2 and -0.5 * 0
    policy, proximal = rows([0.0, -1.5, -1.5]), rows([-0.5, -1.0, -1.5])
    advantages = rows([3, -1, 1])
    batch = loss_batch(policy, proximal, advantages, everywhere(policy))
    rule = KlCov(share=1e-3, coefficient=4)  # a thousandth of three tokens is one all the same
    result, gradient = differentiate(lambda b: rule.loss(b, "token_mean"), batch)
    assert result.loss.item() == pytest.approx((-3 * exp(0.5) + 4 * 0.5 + exp(-0.5) - 1) / 3)
    torch.testing.assert_close(gradient, rows([(4 - 3 * exp(0.5)) / 3, exp(-0.5) / 3, -1 / 3]))
    assert result.metrics["penalized_share"].item() == pytest.approx(1 / 3)


def test_clip_cov_drops_at_least_one_candidate():
    policy, advantages = rows([-1.0, -1.0, -3.0, -3.0]), rows([1, 1, -1, -1])
    batch = loss_batch(
        policy, policy, advantages, everywhere(policy), draws_BT=rows([0.9, 0.1, 0.5, 0.2])
    )
    rule = ClipCov(share=0.2, covariance_low=0.5, covariance_high=2)
    _, gradient = differentiate(lambda b: rule.loss(b, "token_mean"), batch)
    assert gradient.tolist() == [[-0.25, 0, 0.25, 0.25]]


def test_clip_cov_drops_the_candidates_with_the_lowest_draws():
    policy, advantages = rows([-1.0, -1.0, -3.0, -3.0]), rows([1, 1, -1, -1])
    batch = loss_batch(
        policy, policy, advantages, everywhere(policy), draws_BT=rows([0.9, 0.1, 0.5, 0.2])
    )
    rule = ClipCov(share=0.5, covariance_low=0.5, covariance_high=2)
    result, gradient = differentiate(lambda b: rule.loss(b, "token_mean"), batch)
    assert gradient.tolist() == [[-0.25, 0, 0.25, 0]]
    assert result.metrics["dropped_share"].item() == pytest.approx(0.5)


def test_a_value_gains_nothing_beyond_its_clip():
    values = rows([1.0, 1.0]).requires_grad_()
    mask = everywhere(values)
    result = ValueLoss(clip=0.2).loss(
        values,
        rows([2.0, 0.9]),
        old_values_BT=rows([0.0, 1.0]),
        mask_BT=mask,
        totals=totals_of(mask),
    )
    assert result.loss.item() == pytest.approx(0.5 * (1.8**2 + 0.1**2) / 2)
    assert result.metrics["value_clipped_share"].item() == pytest.approx(0.5)
    (gradient,) = torch.autograd.grad(result.loss, values)
    torch.testing.assert_close(gradient, rows([0, 0.05]))


def test_a_value_on_an_observation_is_not_read():
    mask = torch.tensor([[True, False]])
    values = rows([1.0, float("nan")]).requires_grad_()
    result = ValueLoss().loss(
        values,
        rows([0.0, float("nan")]),
        old_values_BT=rows([1.0, float("nan")]),
        mask_BT=mask,
        totals=totals_of(mask),
    )
    (gradient,) = torch.autograd.grad(result.loss, values)
    assert (result.loss.item(), gradient.tolist()) == (0.5, [[1, 0]])


def test_a_kl_penalty_in_the_reward_spares_observations():
    mask = torch.tensor([[True, False, True]])
    rule = KlPenalty(place="reward", estimator="k1", coefficient=0.5)
    log_ratio = rows([0.2, float("nan"), -0.4])
    rewards = rule.penalized(rows([0.0, 0.0, 1.0]), log_ratio, mask, coefficient=0.5)
    torch.testing.assert_close(rewards, rows([-0.1, 0.0, 1.2]))


def test_a_kl_penalty_adds_up_over_micro_batches():
    policy, reference = rows([-1.0, -2.0], [-3.0, -0.5]), rows([-1.5, -2.5], [-2.0, float("nan")])
    mask = torch.tensor([[1, 1], [1, 0]]).bool()
    batch = loss_batch(
        policy, policy, torch.zeros_like(policy), mask, reference_logprobs_BT=reference
    )

    def penalty(part):
        rule = KlPenalty(estimator="k2")
        return rule.loss(part, "token_mean", coefficient=0.1)

    whole, gradient = differentiate(penalty, batch)
    torch.testing.assert_close(gradient, rows([0.05 / 3, 0.05 / 3], [-0.1 / 3, 0]))
    parts = [
        penalty(
            replace(
                batch,
                policy_logprobs_BT=policy[i : i + 1],
                proximal_logprobs_BT=policy[i : i + 1],
                reference_logprobs_BT=reference[i : i + 1],
                loss_mask_BT=mask[i : i + 1],
            )
        )
        for i in range(2)
    ]
    torch.testing.assert_close(sum(part.loss for part in parts), whole.loss.detach())
    torch.testing.assert_close(sum(part.metrics["kl"] for part in parts), whole.metrics["kl"])


def test_forbidden_tokens_add_nothing_to_the_entropy():
    logits = rows([0.0, 0.0, -torch.inf, -torch.inf]).requires_grad_()
    entropy = token_entropy(logits)
    (gradient,) = torch.autograd.grad(entropy.sum(), logits)
    assert entropy.item() == pytest.approx(log(2))
    assert not gradient.isnan().any()


@pytest.mark.parametrize(
    ("settings_of_rule", "reason"),
    [
        ({"name": "ppo_clip", "dual_clip": 1.1, "clip_high": 0.28}, "dual_clip"),
        ({"name": "cispo", "convention": "trl", "clip_low": 0.2}, "clip_low"),
        ({"name": "clip_cov", "covariance_low": 5, "covariance_high": 1}, "covariance_low"),
        ({"name": "ppo", "clip_low": 0.2}, "ppo_clip"),
        ({"name": "dpo", "clip_low": 0.2}, "clip_low"),
    ],
)
def test_a_loss_with_settings_that_make_no_sense_is_refused(settings_of_rule, reason):
    with pytest.raises(ValidationError, match=reason):
        TypeAdapter(LossRule).validate_python(settings_of_rule)


def test_cispos_bound_counts_from_one_in_verl_only():
    policy = torch.log(rows([4.0, 0.5]))
    batch = loss_batch(policy, torch.zeros_like(policy), rows([1, 1]), everywhere(policy))
    batch = replace(batch, totals=Totals(tokens=1, sequences=1, rows=1, max_tokens=2))
    slopes = [
        differentiate(lambda b, rule=rule: rule.loss(b, "token_mean"), batch)[1].tolist()
        for rule in (
            Cispo(convention="trl", clip_high=2),
            Cispo(convention="verl", clip_high=2),
            Cispo(convention="verl", clip_high=2, clip_low=0.2),
        )
    ]
    torch.testing.assert_close(slopes, [[[-2.0, -0.5]], [[-3.0, -0.5]], [[-3.0, -0.8]]])

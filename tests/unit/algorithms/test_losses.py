"""Losses by hand, where no golden vector holds them, and what their parameters refuse."""

from math import exp, log

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from espalier.algorithms.aggregation import aggregate
from espalier.algorithms.losses import ClipCov, Dpo, KlCov, LossRule, ValueLoss
from espalier.algorithms.regularizers import AdaptiveKl, KlPenalty, token_entropy
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


def differentiated_dpo(beta, policy, reference, mask, pairs):
    batch = loss_batch(
        policy,
        policy,
        torch.zeros_like(policy),
        mask,
        reference_logprobs_BT=reference,
        pairs_P2=torch.tensor(pairs),
        totals=totals_of(mask, pairs=len(pairs)),
    )
    return differentiate(lambda b: Dpo(beta=beta).loss(b, "seq_mean_token_sum"), batch)


def test_dpo_by_hand():
    policy = rows([-1.0, -2.0], [-1.0, -4.0], [-3.0, -3.0])
    reference = rows([-2.0, -2.5], [-1.5, -3.0], [-9.0, -9.0])
    mask = torch.tensor([[1, 1], [1, 1], [0, 0]]).bool()
    result, gradient = differentiated_dpo(0.5, policy, reference, mask, [[0, 1], [2, 0]])
    # margins: 1 + 0.5 = 1.5, 0.5 - 1 = -0.5, and 0 of the row without tokens
    first, second = 0.5 * (1.5 + 0.5), 0.5 * (0 - 1.5)
    losses = log(1 + exp(-first)), log(1 + exp(-second))
    assert result.loss.item() == pytest.approx(sum(losses) / 2)
    assert result.metrics["pair_accuracy"].item() == pytest.approx(1 / 2)
    assert result.metrics["pair_margin"].item() == pytest.approx((first + second) / 2)
    push = 0.5 / 2 * (1 / (1 + exp(first))), 0.5 / 2 * (1 / (1 + exp(second)))
    expected = rows([push[1] - push[0]] * 2, [push[0]] * 2, [0, 0])
    torch.testing.assert_close(gradient, expected)

    policy, reference = rows([-3000.0], [-1.0]), rows([-1.0], [-3000.0])
    result, gradient = differentiated_dpo(1, policy, reference, everywhere(policy), [[0, 1]])
    assert result.loss.item() == pytest.approx(2 * 2999), "a hopeless pair does not overflow"
    torch.testing.assert_close(gradient, rows([-1.0], [1.0]))


def test_kl_cov_penalizes_the_log_ratio_of_the_highest_covariance():
    # means: log-probs -1, advantages 1; covariances 1 * 2, -0.5 * -2 and -0.5 * 0
    policy, proximal = rows([0.0, -1.5, -1.5]), rows([-0.5, -1.0, -1.5])
    batch = loss_batch(policy, proximal, rows([3, -1, 1]), everywhere(policy))
    rule = KlCov(share=1e-3, coefficient=4)  # a thousandth of three tokens is one all the same
    result, gradient = differentiate(lambda b: rule.loss(b, "token_mean"), batch)
    assert result.loss.item() == pytest.approx((-3 * exp(0.5) + 4 * 0.5 + exp(-0.5) - 1) / 3)
    torch.testing.assert_close(gradient, rows([(4 - 3 * exp(0.5)) / 3, exp(-0.5) / 3, -1 / 3]))
    assert result.metrics["penalized_share"].item() == pytest.approx(1 / 3)
    policy = torch.full((2, 5), -1.0, dtype=torch.float64)
    equal = loss_batch(policy, policy, torch.ones_like(policy), everywhere(policy))
    penalized = KlCov(share=0.3).loss(equal, "token_mean").metrics["penalized_share"]
    assert penalized.item() == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("share", "gradient"), [(0.2, [-0.25, 0, 0.25, 0.25]), (0.5, [-0.25, 0, 0.25, 0])]
)
def test_clip_cov_drops_the_candidates_with_the_lowest_draws(share, gradient):
    policy, advantages = rows([-1.0, -1.0, -3.0, -3.0]), rows([1, 1, -1, -1])
    draws = rows([0.9, 0.1, 0.5, 0.2])
    batch = loss_batch(policy, policy, advantages, everywhere(policy), draws_BT=draws)
    rule = ClipCov(share=share, covariance_low=0.5, covariance_high=2)
    result, found = differentiate(lambda b: rule.loss(b, "token_mean"), batch)
    assert found.tolist() == [gradient]
    assert result.metrics["dropped_share"].item() == pytest.approx(gradient.count(0) / 4)


def test_a_value_gains_nothing_beyond_its_clip():
    mask = torch.tensor([[True, True, False]])
    values = rows([1.0, 1.0, float("nan")]).requires_grad_()
    result = ValueLoss(clip=0.2).loss(
        values,
        rows([2.0, 0.9, float("nan")]),
        old_values_BT=rows([0.0, 1.0, float("nan")]),
        mask_BT=mask,
        totals=totals_of(mask),
    )
    assert result.loss.item() == pytest.approx(0.5 * (1.8**2 + 0.1**2) / 2)
    assert result.metrics["value_clipped_share"].item() == pytest.approx(0.5)
    (gradient,) = torch.autograd.grad(result.loss, values)
    torch.testing.assert_close(gradient, rows([0, 0.05, 0]))


def test_a_kl_penalty_in_the_reward_spares_observations():
    mask = torch.tensor([[True, False, True]])
    rule = KlPenalty(place="reward", estimator="k1", coefficient=0.5)
    log_ratio = rows([0.2, float("nan"), -0.4])
    rewards = rule.penalized(rows([0.0, 0.0, 1.0]), log_ratio, mask, coefficient=0.5)
    torch.testing.assert_close(rewards, rows([-0.1, 0.0, 1.2]))


def test_a_kl_penalty_adds_up_over_micro_batches():
    policy, reference = rows([-1.0, -2.0], [-3.0, -0.5]), rows([-1.5, -2.5], [-2.0, float("nan")])
    mask = torch.tensor([[1, 1], [1, 0]]).bool()
    zeros, totals = torch.zeros_like(policy), totals_of(mask)

    def penalty(part):
        return KlPenalty(estimator="k2").loss(part, "token_mean", coefficient=0.1)

    def of(some):
        policy_bt, mask_bt = policy[some], mask[some]
        optional = {"totals": totals, "reference_logprobs_BT": reference[some]}
        return loss_batch(policy_bt, policy_bt, zeros[some], mask_bt, **optional)

    whole, gradient = differentiate(penalty, of(slice(0, 2)))
    torch.testing.assert_close(gradient, rows([0.05 / 3, 0.05 / 3], [-0.1 / 3, 0]))
    parts = [penalty(of(slice(row, row + 1))) for row in range(2)]
    torch.testing.assert_close(sum(part.loss for part in parts), whole.loss.detach())
    torch.testing.assert_close(sum(part.metrics["kl"] for part in parts), whole.metrics["kl"])


def test_forbidden_tokens_add_nothing_to_the_entropy():
    logits = rows([0.0, 0.0, -torch.inf, -torch.inf]).requires_grad_()
    entropy = token_entropy(logits)
    (gradient,) = torch.autograd.grad(entropy.sum(), logits)
    assert entropy.item() == pytest.approx(log(2))
    assert not gradient.isnan().any()


@pytest.mark.parametrize(
    ("trajectories", "observed", "moved"),
    [(50, 0.0, 0.9), (100, 0.0, 0.8), (512, 0.0, 0.8), (512, 100.0, 1.2), (10**6, 0.0, 0.8)],
)
def test_no_step_turns_a_kl_penalty_into_a_reward(trajectories, observed, moved):
    found = AdaptiveKl(target=6.0, horizon=100).next_coefficient(1.0, observed, trajectories)
    assert found == pytest.approx(moved)


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

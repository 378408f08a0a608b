"""What holds for every policy loss, whatever its formula."""

from dataclasses import fields, replace
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.algorithms import losses
from espalier.algorithms.aggregation import Aggregation
from espalier.algorithms.regularizers import KlPenalty
from tests.factories.loss_batches import differentiate, loss_batch, totals_of

RULES = [
    losses.PpoClip(),
    losses.PpoClip(dual_clip=1.5),
    losses.Gspo(clip_low=0.1, clip_high=0.1),
    losses.SequencePpoClip(),
    losses.Gmpo(),
    losses.Cispo(clip_high=1.5),
    losses.Cispo(convention="verl", clip_high=0.2, clip_low=0.2),
    losses.Sapo(),
    losses.Reinforce(),
    losses.KlCov(share=0.2),
    losses.ClipCov(share=0.2, covariance_low=-1, covariance_high=1),
    losses.Vespo(),
    losses.Dppo(fall=0.02, rise=0.02, kl_coefficient=0.1),
    losses.Ipo(threshold=0.02, kl_coefficient=0.1),
    losses.Dpo(),
]
NOT_REINFORCE = {
    "clip_cov": "drops tokens at random at any ratio; it is REINFORCE where there is no candidate",
    "dpo": "has no advantages: it compares pairs",
}
LIKE_REINFORCE = [
    *(rule for rule in RULES if rule.name not in NOT_REINFORCE),
    losses.ClipCov(covariance_low=1e8, covariance_high=1e9),
]
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
few = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 2**32 - 1)
modes = st.sampled_from(get_args(Aggregation))


def uniform(generator, shape, low, high):
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)


def some_batch(seed):
    """Two to six rows of up to eight tokens, holes and empty rows included, every field set."""
    generator = torch.Generator().manual_seed(seed)
    rows = 2 * int(torch.randint(1, 4, (), generator=generator))
    shape = (rows, int(torch.randint(2, 9, (), generator=generator)))
    mask = uniform(generator, shape, 0, 1) < 0.6
    mask[1:, :] &= (uniform(generator, (rows - 1, 1), 0, 1) < 0.8).expand(rows - 1, shape[1])
    # of two tokens the covariances are equal, and which of them is the higher is rounding
    mask[0, :] = mask[1, 0] = True
    proximal = uniform(generator, shape, -3, -0.1)
    near = {name: proximal + uniform(generator, shape, -0.7, 0.7) for name in "pbr"}
    advantages = torch.randn(rows, 1, generator=generator, dtype=torch.float64).expand(shape)
    return loss_batch(
        near["p"],
        proximal,
        advantages.clone(),
        mask,
        behavior_logprobs_BT=near["b"],
        reference_logprobs_BT=near["r"],
        importance_weights_BT=uniform(generator, shape, 0.2, 2),
        draws_BT=uniform(generator, shape, 0, 1),
        pairs_P2=torch.randperm(rows, generator=generator).view(-1, 2),
        totals=totals_of(mask, max_tokens=9, pairs=rows // 2),
    )


def with_tensors(batch, change):
    """The batch with `change(name, tensor)` in the place of every [B, T] tensor."""
    named = {f.name: getattr(batch, f.name) for f in fields(batch) if f.name.endswith("_BT")}
    present = {name: values for name, values in named.items() if values is not None}
    return replace(batch, **{name: change(name, values) for name, values in present.items()})


def outcome(rule, batch, mode):
    return differentiate(lambda b: rule.loss(b, rule.fixed_aggregation or mode), batch)


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


def test_every_loss_of_the_union_is_tried():
    assert {type(rule) for rule in RULES} == set(get_args(get_args(losses.LossRule)[0]))


@each_rule
@few
@given(seed=seeds, mode=modes)
def test_permuting_the_trajectories_permutes_the_gradient(rule, seed, mode):
    batch = some_batch(seed)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(batch.loss_mask_BT), generator=generator)
    permuted = with_tensors(batch, lambda _, values: values[order])
    permuted = replace(permuted, pairs_P2=order.argsort()[batch.pairs_P2])
    (plain, gradient), (other, other_gradient) = (outcome(rule, b, mode) for b in (batch, permuted))
    assert_same(other.loss, plain.loss)
    assert_same(other_gradient, gradient[order])
    assert_same(dict(other.metrics), dict(plain.metrics))


@pytest.mark.parametrize(
    "rule", [r for r in RULES if not r.whole_minibatch], ids=lambda rule: rule.name
)
@few
@given(seed=seeds, mode=modes)
def test_micro_batches_add_up_to_the_minibatch(rule, seed, mode):
    batch = some_batch(seed)
    in_pairs = batch.pairs_P2.flatten()
    whole, gradient = outcome(rule, batch, mode)
    loss, metrics = 0, dict.fromkeys(whole.metrics, 0)
    for rows in in_pairs.view(-1, 2):
        part = with_tensors(batch, lambda _, values, rows=rows: values[rows])
        share, part_gradient = outcome(rule, replace(part, pairs_P2=torch.tensor([[0, 1]])), mode)
        loss = loss + share.loss
        metrics = {key: metrics[key] + value for key, value in share.metrics.items()}
        assert_same(part_gradient, gradient[rows])
    assert_same(loss, whole.loss)
    for key, value in whole.metrics.items():
        torch.testing.assert_close(metrics[key], value)


@each_rule
@few
@given(
    seed=seeds,
    mode=modes,
    junk=st.sampled_from([-7.0, 0.0, 90.0, float("nan"), -torch.inf]),
    width=st.integers(0, 4),
)
def test_masked_or_padded_values_change_nothing_without_gradient(rule, seed, mode, junk, width):
    batch = some_batch(seed)
    masked = ~batch.loss_mask_BT
    rows, columns = masked.shape

    def changed(name, values):
        padding = values.new_full((rows, width), 0 if "mask" in name else junk)
        inside = values if "mask" in name else values.masked_fill(masked, junk)
        return torch.cat([inside, padding], dim=1)

    (plain, gradient), (other, other_gradient) = (
        outcome(rule, b, mode) for b in (batch, with_tensors(batch, changed))
    )
    assert_same(other.loss, plain.loss)
    assert_same(other_gradient[:, :columns], gradient)
    assert not other_gradient[:, columns:].any()
    assert torch.equal(gradient[masked], torch.zeros_like(gradient[masked]))
    assert_same(dict(other.metrics), dict(plain.metrics))


@pytest.mark.parametrize("rule", LIKE_REINFORCE, ids=lambda rule: rule.name)
@few
@given(seed=seeds, mode=modes)
def test_one_inner_step_at_ratio_1_gives_the_reinforce_gradient(rule, seed, mode):
    batch = some_batch(seed)
    batch = replace(
        batch,
        proximal_logprobs_BT=batch.policy_logprobs_BT,
        behavior_logprobs_BT=batch.policy_logprobs_BT,
        importance_weights_BT=None,
    )
    _, gradient = outcome(rule, batch, mode)
    # one ratio for the sequence moves by the sum of its tokens, and not by their mean
    summed = "row_mean_token_sum" if rule.name == "sequence_ppo_clip" else None
    _, reinforce = outcome(losses.Reinforce(), batch, summed or rule.fixed_aggregation or mode)
    assert_same(gradient, reinforce)


@each_rule
@pytest.mark.parametrize("gap", [30.0, 89.0, 300.0, -30.0, -89.0, -300.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_token_far_from_the_sampler_leaves_all_finite(rule, gap, advantage):
    """`exp` overflows float32 from 89 nats on; a masked infinity would still give NaN gradients."""
    sampled = torch.full((2, 3), -2.0 - max(gap, 0.0))
    policy = sampled.clone()
    policy[0, 1] += gap
    extreme = loss_batch(
        policy,
        sampled,
        torch.full((2, 3), advantage),
        torch.ones(2, 3, dtype=torch.bool),
        behavior_logprobs_BT=sampled,
        reference_logprobs_BT=sampled,
        importance_weights_BT=torch.ones(2, 3),
        draws_BT=torch.linspace(0, 1, 6).view(2, 3),
        pairs_P2=torch.tensor([[0, 1]]),
        totals=totals_of(torch.ones(2, 3, dtype=torch.bool), max_tokens=3, pairs=1),
    )
    found, gradient = differentiate(lambda batch: rule.loss(batch, "token_mean"), extreme)
    assert found.loss.isfinite()
    assert gradient.isfinite().all()
    assert all(torch.as_tensor(value).isfinite() for value in found.metrics.values())


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("reference", [-1.0, -400.0])
@pytest.mark.parametrize("policy", [-11.0, -61.0, -101.0, -400.0])
def test_a_token_far_from_the_reference_owns_no_step(policy, reference, corrected):
    others = torch.full((1, 2), -1.0)
    batch = loss_batch(
        torch.tensor([[policy, -1.0]]),
        others,
        torch.zeros(1, 2),
        torch.ones(1, 2, dtype=torch.bool),
        reference_logprobs_BT=torch.tensor([[reference, -1.0]]),
    )
    penalty = KlPenalty(coefficient=1.0, importance_corrected=corrected)
    _, gradient = differentiate(
        lambda batch: penalty.loss(batch, "token_mean", coefficient=1.0), batch
    )
    assert gradient.isfinite().all()
    assert gradient.abs().max() < 1e5

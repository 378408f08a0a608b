"""Off-policy corrections by hand, and what holds for all of them."""

from dataclasses import fields, replace
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from espalier.algorithms import off_policy

RULES = [
    off_policy.ImportanceWeights(),
    off_policy.ImportanceWeights(level="sequence", normalize=True, lower=0.5),
    off_policy.ImportanceWeights(outside="zero", log_ratio_bound=None),
    *(
        off_policy.Rejection(level=level, estimator=estimator, upper=upper)
        for level in ("token", "seq_sum", "seq_mean", "seq_max")
        for estimator, upper in (("k1", 1.3), ("k2", 0.1), ("k3", 0.1))
    ),
    off_policy.OffPolicySequenceMask(threshold=0.05),
]
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
few = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


def some_batch(seed):
    generator = torch.Generator().manual_seed(seed)
    shape = tuple(torch.randint(2, 7, (2,), generator=generator).tolist())
    mask = torch.rand(shape, generator=generator) < 0.7
    mask[0, 0] = True
    trainer = -3 * torch.rand(shape, generator=generator, dtype=torch.float64)
    return off_policy.CorrectionBatch(
        trainer_logprobs_BT=trainer,
        behavior_logprobs_BT=trainer + 0.3 * torch.randn(shape, generator=generator),
        action_mask_BT=mask,
        advantages_BT=torch.randn(shape[0], 1, generator=generator).expand(shape).double(),
    )


def of(log_ratios, mask=None, advantages=None):
    ratios = rows(*log_ratios)
    return off_policy.CorrectionBatch(
        trainer_logprobs_BT=ratios - 5,
        behavior_logprobs_BT=torch.full_like(ratios, -5),
        action_mask_BT=torch.ones_like(ratios).bool() if mask is None else torch.tensor(mask),
        advantages_BT=advantages,
    )


def test_every_rule_of_the_union_is_tried():
    assert {type(rule) for rule in RULES} == set(get_args(get_args(off_policy.OffPolicyRule)[0]))


@each_rule
@few
@given(seed=seeds)
def test_a_correction_of_permuted_trajectories_is_the_permuted_correction(rule, seed):
    batch = some_batch(seed)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(batch.action_mask_BT), generator=generator)
    names = (one.name for one in fields(batch))
    permuted = off_policy.CorrectionBatch(**{name: getattr(batch, name)[order] for name in names})
    plain, other = rule.correct(batch), rule.correct(permuted)
    assert torch.equal(other.mask_BT, plain.mask_BT[order])
    if rule.gives_weights:
        torch.testing.assert_close(other.weights_BT, plain.weights_BT[order])
    torch.testing.assert_close(dict(other.metrics), dict(plain.metrics))


@each_rule
@few
@given(seed=seeds, junk=st.sampled_from([-9.0, 50.0, float("nan"), -torch.inf]))
def test_what_stands_on_an_observation_changes_no_correction(rule, seed, junk):
    batch = some_batch(seed)
    mask = batch.action_mask_BT
    changed = replace(
        batch,
        trainer_logprobs_BT=batch.trainer_logprobs_BT.masked_fill(~mask, junk),
        behavior_logprobs_BT=batch.behavior_logprobs_BT.masked_fill(~mask, junk / 3),
    )
    plain, other = rule.correct(batch), rule.correct(changed)
    assert torch.equal(other.mask_BT, plain.mask_BT)
    assert not (plain.mask_BT & ~mask).any()
    if rule.gives_weights:
        assert torch.equal(other.weights_BT[mask], plain.weights_BT[mask])
    assert other.metrics == plain.metrics


@each_rule
@few
@given(seed=seeds)
def test_on_policy_data_are_not_corrected(rule, seed):
    batch = some_batch(seed)
    correction = rule.correct(replace(batch, behavior_logprobs_BT=batch.trainer_logprobs_BT))
    assert torch.equal(correction.mask_BT, batch.action_mask_BT)
    if rule.gives_weights:
        kept = correction.weights_BT[batch.action_mask_BT]
        torch.testing.assert_close(kept, torch.ones_like(kept))
    nowhere = torch.zeros_like(batch.action_mask_BT)
    assert not rule.correct(replace(batch, action_mask_BT=nowhere)).mask_BT.any()


@each_rule
def test_a_token_without_a_behaviour_logprob_counts_as_equal(rule):
    batch = of([[0.0, 3.0], [0.0, 0.1]], advantages=rows([-1, -1], [-1, -1]))
    unknown = batch.behavior_logprobs_BT.masked_fill(batch.log_ratio_BT == 3, float("nan"))
    same = batch.behavior_logprobs_BT.where(batch.log_ratio_BT != 3, batch.trainer_logprobs_BT)
    found, expected = (
        rule.correct(replace(batch, behavior_logprobs_BT=logprobs)) for logprobs in (unknown, same)
    )
    assert torch.equal(found.mask_BT, expected.mask_BT)
    if rule.gives_weights:
        assert torch.equal(found.weights_BT, expected.weights_BT)


def test_an_overflowing_ratio_is_truncated_or_zeroed_without_gradient():
    batch = of([[900.0, 0.0]])
    policy = batch.trainer_logprobs_BT.clone().requires_grad_()
    for outside, expected in (("truncate", 2.0), ("zero", 0.0)):
        rule = off_policy.ImportanceWeights(outside=outside, log_ratio_bound=None)
        weights = rule.correct(replace(batch, trainer_logprobs_BT=policy)).weights_BT
        assert weights.tolist() == [[expected, 1.0]]
        assert not weights.requires_grad


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_weights_that_are_all_zero_are_not_normalized(level):
    """verl divides by the mean weight only above 1e-8."""
    rule = off_policy.ImportanceWeights(level=level, outside="zero", normalize=True)
    correction = rule.correct(of([[5.0, 6.0], [7.0, 8.0]]))
    assert correction.weights_BT.tolist() == [[0, 0], [0, 0]]
    assert correction.metrics["importance_effective_share"].item() == 0


def test_rules_see_the_unchanged_batch_and_combine():
    half = -0.6931471805599453
    batch = of([[half, 0.0], [0.0, half * 4]])
    weights = off_policy.ImportanceWeights(normalize=True)
    rejection = off_policy.Rejection(upper=4.0)
    both, reverse = (
        off_policy.correct(r, batch) for r in ([weights, rejection], [rejection, weights])
    )
    assert torch.equal(both.weights_BT, reverse.weights_BT)
    assert both.mask_BT.tolist() == [[True, True], [True, False]]
    torch.testing.assert_close(both.weights_BT, rows([0.5, 1], [1, 1 / 16]) / (2.5625 / 4))
    assert both.metrics["rejected_share_token_k1"].item() == 0.25
    assert both.metrics["importance_weight_mean"].item() == pytest.approx(2.5625 / 4)
    nothing = off_policy.correct([], batch)
    assert nothing.weights_BT is None
    assert nothing.mask_BT is batch.action_mask_BT


def test_the_effective_share_is_that_of_the_weights_in_use():
    batch = of([[9.0, -50.0, 9.0, -50.0]])
    metrics = off_policy.ImportanceWeights(upper=2).correct(batch).metrics
    assert metrics["importance_effective_share"].item() == pytest.approx(0.5)
    assert metrics["importance_above_share"].item() == 0.5


@pytest.mark.parametrize(
    ("given_settings", "reason"),
    [
        ({"name": "importance_weights", "lower": 3, "upper": 2}, "lower"),
        ({"name": "rejection", "estimator": "k3", "lower": 0.1, "upper": 1}, "lower"),
        ({"name": "rejection", "upper": 0.5}, "between"),
        ({"name": "rejection"}, "upper"),
    ],
)
def test_a_correction_with_settings_that_make_no_sense_is_refused(given_settings, reason):
    with pytest.raises(ValidationError, match=reason):
        TypeAdapter(off_policy.OffPolicyRule).validate_python(given_settings)

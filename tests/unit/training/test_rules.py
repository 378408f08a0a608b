import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from espalier.training.advantages import grpo_advantages, is_zero_variance
from espalier.training.losses import asymmetric_clip, k3_kl


def test_group_with_equal_rewards_yields_exactly_zero_advantages():
    rewards = torch.tensor([[0.7] * 10, [0.0, 1.0] * 5])
    advantages = grpo_advantages(rewards)
    assert torch.equal(advantages[0], torch.zeros(10))
    assert is_zero_variance([0.7] * 10)


@given(arrays.arrays("float64", (3, 6), elements=st.floats(0, 1)), st.permutations(range(6)))
@settings(max_examples=50, deadline=None)
def test_permuting_a_group_permutes_its_advantages(rewards, order):
    plain = grpo_advantages(torch.tensor(rewards))
    permuted = grpo_advantages(torch.tensor(rewards[:, order]))
    torch.testing.assert_close(permuted, plain[:, order], rtol=1e-6, atol=1e-6)


def test_a_reward_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="not finite"):
        grpo_advantages(torch.tensor([[0.0, float("nan")]]))


def test_at_ratio_one_the_gradient_is_that_of_reinforce():
    logprobs = torch.randn(8, dtype=torch.float64, requires_grad=True)
    advantages = torch.randn(8, dtype=torch.float64)
    loss = asymmetric_clip(logprobs, logprobs.detach(), advantages, clip_low=0.2, clip_high=0.28)
    loss.loss_N.sum().backward()
    torch.testing.assert_close(logprobs.grad, -advantages)


def test_the_clip_holds_back_only_steps_that_go_further_the_same_way():
    behavior = torch.zeros(4)
    policy = torch.log(torch.tensor([1.5, 1.5, 0.5, 0.5]))
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
    result = asymmetric_clip(policy, behavior, advantages, clip_low=0.2, clip_high=0.28)
    assert result.clipped_N.tolist() == [True, False, False, True]
    torch.testing.assert_close(result.loss_N, torch.tensor([-1.28, 1.5, -0.5, 0.8]))


def test_k3_is_never_negative_and_zero_for_equal_policies():
    policy, reference = torch.randn(100), torch.randn(100)
    assert (k3_kl(policy, reference) >= 0).all()
    assert torch.equal(k3_kl(policy, policy), torch.zeros(100))

"""What must change neither the loss nor the gradient, for every preset, on a whole model."""

import random
from dataclasses import replace

import pytest
import torch

from espalier.algorithms.presets import PRESETS
from tests.factories.training_episodes import (
    exact_policy,
    gradient_of,
    layout,
    mixed_groups,
    on_policy,
    profile_of,
)

QUICK = {"clip_cov", "default", "dpo", "ppo"}
"""Presets that differ most; all others take minutes together."""
ALL = [
    pytest.param(preset, marks=() if preset in QUICK else pytest.mark.slow)
    for preset in sorted(PRESETS)
]
REINFORCING = ("opo", "cispo", "dapo", "vespo", "ipo")
NO_DRAWS = [param for param in ALL if param.values != ("clip_cov",)]
"""Clip-Cov draws tokens by their place in the batch, so that places matter to it."""


@pytest.fixture(scope="module")
def policy():
    return exact_policy()


@pytest.mark.parametrize("preset", ALL)
def test_gradients_of_micro_batches_add_up_to_the_whole(policy, preset):
    groups, profile = mixed_groups(), profile_of({"preset": preset})
    whole = gradient_of(policy, groups, profile, layout(micro_batch_tokens=4096))
    parts = gradient_of(policy, groups, profile, layout(micro_batch_tokens=64))
    assert any(gradient.abs().max() > 0 for gradient in whole.by_name.values())
    parts.close_to(whole, tolerance=1e-6)


@pytest.mark.parametrize("preset", NO_DRAWS)
def test_order_of_groups_and_of_their_trajectories_does_not_matter(policy, preset):
    groups, profile, rng = mixed_groups(), profile_of({"preset": preset}), random.Random(1)
    shuffled = [
        replace(group, trajectories=tuple(rng.sample(group.trajectories, len(group.trajectories))))
        for group in rng.sample(groups, len(groups))
    ]
    gradient_of(policy, shuffled, profile).close_to(gradient_of(policy, groups, profile), 1e-6)


@pytest.mark.parametrize("preset", ["default", "gspo", "ppo", "dpo"])
def test_padding_does_not_matter(policy, preset):
    groups, profile = mixed_groups(), profile_of({"preset": preset})
    tight = gradient_of(policy, groups, profile, layout(row_tokens=1))  # every sequence by itself
    wide = gradient_of(policy, groups, profile, layout(row_tokens=200))
    wide.close_to(tight, 1e-6)


@pytest.mark.parametrize("preset", ALL)
def test_log_probs_of_observations_do_not_matter(policy, preset):
    groups, profile = mixed_groups(), profile_of({"preset": preset})

    def disturbed(trajectory):
        pairs = zip(trajectory.behavior_logprobs, trajectory.action_mask, strict=True)
        return replace(trajectory, behavior_logprobs=tuple(x if on else -9.0 for x, on in pairs))

    other = [replace(g, trajectories=tuple(map(disturbed, g.trajectories))) for g in groups]
    gradient_of(policy, other, profile).close_to(gradient_of(policy, groups, profile), 1e-12)


@pytest.mark.parametrize(
    "preset", ["default", *(pytest.param(p, marks=pytest.mark.slow) for p in REINFORCING)]
)
def test_at_ratio_1_the_gradient_is_that_of_reinforce(policy, preset):
    groups = on_policy(mixed_groups(), policy)
    profile = profile_of({"preset": preset, "aggregation": "token_mean"})
    advantage = profile.training.algorithm.advantage.model_dump()
    plain = {"loss": {"name": "reinforce"}, "aggregation": "token_mean", "advantage": advantage}
    found = gradient_of(policy, groups, profile).by_name
    expected = gradient_of(policy, groups, profile_of(plain)).by_name
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("preset", ALL)
def test_gradient_is_exactly_zero_wherever_no_action_token_is_predicted(preset):
    policy, profile, kept = exact_policy(), profile_of({"preset": preset}), []

    def keep(_module, _arguments, keywords, output):
        if output.last_hidden_state.requires_grad:
            output.last_hidden_state.retain_grad()
            kept.append((keywords["input_ids"], output.last_hidden_state))

    policy.base_model.register_forward_hook(keep, with_kwargs=True)
    groups = mixed_groups(sizes=(2, 2))
    gradient_of(policy, groups, profile, layout(row_tokens=1, micro_batch_tokens=1))
    trajectories = {t.token_ids: t for group in groups for t in group.trajectories}
    assert kept
    for ids_RT, hidden_RTH in kept:
        for ids_T, gradient_TH in zip(ids_RT.tolist(), hidden_RTH.grad, strict=True):
            found = [t for ids, t in trajectories.items() if tuple(ids_T[: len(ids)]) == ids]
            mask = found[0].action_mask
            silent = [c for c in range(len(ids_T)) if c + 1 >= len(mask) or not mask[c + 1]]
            assert torch.equal(gradient_TH[silent], torch.zeros_like(gradient_TH[silent]))

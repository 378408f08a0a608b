"""Gradients and updates on a GPU are those of the CPU, up to the rounding of float32."""

import copy
from dataclasses import replace

import pytest
import torch

from espalier.algorithms.presets import PRESETS
from espalier.policy.hardware import Hardware
from espalier.records import NullTracker
from espalier.training.checkpoint import CheckpointStore
from espalier.training.rl.rows import dense_rows, learning_batch
from espalier.training.scoring import support_mask
from espalier.training.supervised import SupervisedLoop
from tests.factories.tiny import tiny_policy
from tests.factories.training import supervised_plan
from tests.factories.training_episodes import (
    gradient_of,
    layout,
    make_update,
    mixed_groups,
    on_policy,
    profile_of,
    step_of,
)
from tests.unit.training.test_prefix_tree import branching_groups

PLACES = ("cpu", "gpu")


def setting(place, device, *, preset="default", prefix_tree=False, nodes=200, **training):
    """A profile and a layout, on the CPU or on the GPU, in float32."""
    chosen = device if place == "gpu" else torch.device("cpu")
    hardware = {"device": chosen.type, "precision": "float32"}
    profile = profile_of({"preset": preset}, hardware=hardware, **training)
    how = replace(layout(nodes, prefix_tree=prefix_tree), hardware=Hardware(chosen, None))
    return profile, how


def policy_on(how):
    model = tiny_policy().model
    how.hardware.move(model)
    return model


@pytest.mark.parametrize("prefix_tree", [False, True], ids=["packed", "tree"])
@pytest.mark.parametrize("preset", PRESETS)
def test_gradients_are_those_of_the_cpu(preset, prefix_tree, device):
    groups = on_policy(branching_groups() if prefix_tree else mixed_groups(), tiny_policy().model)
    found = []
    for place in PLACES:
        profile, how = setting(place, device, preset=preset, prefix_tree=prefix_tree)
        found.append(gradient_of(policy_on(how), groups, profile, how))
    cpu, gpu = found
    assert cpu.by_name.keys() == gpu.by_name.keys()
    largest = max(float(gradient.abs().max()) for gradient in cpu.by_name.values())
    assert largest > 1e-4
    for name, gradient in cpu.by_name.items():
        gap = float((gpu.by_name[name].cpu() - gradient).abs().max())
        assert gap <= 1e-4 * largest, name
    for name, figure in cpu.figures.items():
        assert gpu.figures[name] == pytest.approx(figure, rel=1e-3, abs=1e-4), name


@pytest.mark.parametrize(("kind", "tolerance"), [("adamw", 1e-2), ("muon", 5e-2)])
def test_an_update_moves_the_weights_as_on_the_cpu(kind, tolerance, device):
    """Muon computes in bfloat16 wherever it runs."""
    moved = []
    groups = on_policy(mixed_groups(), tiny_policy().model)
    for place in PLACES:
        profile, how = setting(place, device, preset="ppo", minibatches=1, optimizer={"kind": kind})
        policy = policy_on(how)
        before = copy.deepcopy(policy.state_dict())
        update, _ = make_update(policy, profile, how)
        material = learning_batch(groups, profile.training.algorithm.material)
        rows = dense_rows(material.groups, with_observations=False)
        update.apply(rows, material.units, step_of(profile, 11))
        state = copy.deepcopy(update.state())
        update.restore(state)
        after = policy.state_dict()
        moved.append({name: (after[name] - before[name]).cpu() for name in after})
    cpu, gpu = moved
    for name, change in cpu.items():
        assert float((gpu[name] - change).norm()) <= tolerance * float(change.norm()), name


def test_a_warm_start_has_the_losses_of_the_cpu(device, tmp_path):
    losses = []
    for place in PLACES:
        chosen = Hardware(device if place == "gpu" else torch.device("cpu"), None)
        model = tiny_policy().model
        plan = supervised_plan(steps=20, hardware=chosen)
        result = SupervisedLoop(model, plan, CheckpointStore(tmp_path / place, "x")).run(
            NullTracker()
        )
        losses.append([row["loss"] for row in result.history])
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


def test_the_support_of_truncated_distributions_is_that_of_the_cpu(device):
    logits = torch.randn(50, 5000, generator=torch.Generator().manual_seed(0)) * 3
    for cut in ({"top_p": 0.9, "top_k": 0}, {"top_p": 0.5, "top_k": 40}):
        found = support_mask(logits.to(device), **cut).cpu()
        # a token on the edge of the mass may fall on either side
        assert int((found != support_mask(logits, **cut)).sum()) <= 2

"""Trajectories made by hand, of made-up tokens, and what turns them into an update."""

import random
from dataclasses import replace
from typing import NamedTuple

import torch

from espalier.config import Profile
from espalier.policy.hardware import Hardware
from espalier.records.trajectory import Turn
from espalier.training.packing import TrainingSequence, pack
from espalier.training.parallel import Processes
from espalier.training.rl.assessment import Assessor, StepContext
from espalier.training.rl.models import Layout, Models, build_models
from espalier.training.rl.policy_gradient import Minibatch, PolicyGradient
from espalier.training.rl.rows import Group, dense_rows, learning_batch, totals
from espalier.training.rl.update import PolicyUpdate
from espalier.training.scoring import ScoreRequest, score
from tests.factories.tiny import tiny_policy
from tests.factories.training import make_task, make_trajectory

CPU = Hardware(torch.device("cpu"), None)


def exact_policy(seed=0):
    """In double precision, so that orders of summation do not show."""
    return tiny_policy(seed).model.double()


def episode(number, reward, *, turns=2, rng=None, group="lyon", version=0):
    """`turns` actions with an observation after each but the last."""
    rng = rng or random.Random(number)
    spans, mask = [], [0] * rng.randrange(3, 6)
    for turn in range(turns):
        start = len(mask)
        mask += [1] * rng.randrange(2, 5)
        end = len(mask)
        mask += [0] * (rng.randrange(2, 6) if turn + 1 < turns else 0)
        spans.append(Turn(action_start=start, action_end=end, observation_end=len(mask)))
    fields = {
        "token_ids": tuple(rng.randrange(20, 300) for _ in mask),
        "action_mask": tuple(mask),
        "behavior_logprobs": tuple(-rng.random() * 5 * on for on in mask),
        "turns": tuple(spans),
    }
    return replace(make_trajectory(make_task(group), reward, **fields), policy_version=version)


def mixed_groups(sizes=(4, 4, 3), seed=0, turns=(1, 2, 3)):
    """Ragged groups of episodes of unlike lengths; every other one succeeds."""
    rng = random.Random(seed)
    return [
        Group(
            trajectories=tuple(
                episode(n, n % 2, turns=rng.choice(turns), rng=rng, group=f"name{number}")
                for n in range(size)
            ),
            baseline_reward=0.5,
            expected_reward=0.25,
        )
        for number, size in enumerate(sizes)
    ]


def on_policy(groups, model):
    """The groups as if `model` had sampled them: its log-probs recorded."""

    def recorded(trajectory):
        sequence = TrainingSequence(
            token_ids=trajectory.token_ids, loss_mask=trajectory.action_mask
        )
        batch = pack([sequence], row_tokens=64, gap=2)
        with torch.no_grad():
            logprobs = score(model, batch).logprobs_N
        dense = batch.dense(logprobs, width=len(trajectory.token_ids))[0]
        return replace(trajectory, behavior_logprobs=tuple(dense.tolist()))

    return [
        replace(group, trajectories=tuple(map(recorded, group.trajectories))) for group in groups
    ]


def profile_of(algorithm=None, *, hardware=None, **training):
    # more steps than VAPO's critic warms up
    settings = {"tasks_per_step": 2, "group_size": 6, "minibatches": 1, "steps": 60}
    return Profile.model_validate(
        {
            "episode": {"max_turns": 4, "max_tokens": 64, "max_turn_tokens": 14},
            "training": settings | {"algorithm": algorithm or {}} | training,
            "hardware": hardware or {},
        }
    )


def layout(micro_batch_tokens=8192, row_tokens=64, processes=None, *, prefix_tree=False):
    return Layout(
        hardware=CPU,
        processes=processes or Processes(),
        row_tokens=row_tokens,
        gap=2,
        micro_batch_tokens=micro_batch_tokens,
        prefix_tree=prefix_tree,
    )


def make_update(policy, profile, how=None):
    """The update of `profile` on `policy`, and the models that it trains."""
    how = how or layout()
    models: Models = build_models(
        policy, profile.training, Hardware.from_config(profile.hardware), how.processes
    )
    update = PolicyUpdate(models, profile.training, how, max_action_tokens=56)
    return update, models


def step_of(profile, number=0):
    coefficient = profile.training.algorithm.entropy_coefficient
    return StepContext(number, ScoreRequest(entropy=True, entropy_gradient=coefficient > 0))


class Gradient(NamedTuple):
    by_name: dict[str, torch.Tensor]
    figures: dict[str, float]

    def close_to(self, other, tolerance=1e-9):
        assert self.by_name.keys() == other.by_name.keys()
        for name, gradient in self.by_name.items():
            torch.testing.assert_close(
                gradient, other.by_name[name], rtol=tolerance, atol=tolerance, msg=name
            )
        for name, figure in self.figures.items():
            assert abs(figure - other.figures[name]) < 1e-6, name


def gradient_of(policy, groups, profile, how=None, **rows_settings):
    """Gradient and figures of one minibatch of all `groups`; the policy is left as it was."""
    how = how or layout()
    algorithm = profile.training.algorithm
    material = learning_batch(groups, algorithm.material)
    rows = dense_rows(material.groups, **({"with_observations": False} | rows_settings))
    models = build_models(
        policy, profile.training, Hardware.from_config(profile.hardware), how.processes
    )
    coefficient = algorithm.kl.coefficient if algorithm.kl else 0.0
    request = step_of(profile).request
    assessment = Assessor(models, algorithm, how).assess(rows, request, kl_coefficient=coefficient)
    generator = torch.Generator().manual_seed(0)
    minibatch = Minibatch(
        rows=rows,
        assessment=assessment,
        units=material.units,
        totals=totals(material.units, assessment.loss_mask_BT, max_tokens=56),
        draws_BT=torch.rand(rows.action_mask_BT.shape, generator=generator),
    )
    policy.zero_grad(set_to_none=True)
    figures, _ = PolicyGradient(models.policy, algorithm, how).add(
        minibatch, request, kl_coefficient=coefficient
    )
    found = {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}
    policy.zero_grad(set_to_none=True)
    return Gradient(found, figures)

"""RL runs of seconds whose episodes, weights and minibatches are recorded step by step."""

import copy
import math
import random
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
import torch

from espalier.algorithms.filters import HighEntropyTokens
from espalier.environments import EnvironmentLostError
from espalier.records import NullTracker
from espalier.rollout.roller import Roller
from espalier.training.rl import loop as loop_module
from espalier.training.rl.asynchronous import PolicyReplica
from espalier.training.rl.loop import RlLoop
from espalier.training.rl.pacing import AsynchronousSampler
from espalier.training.rl.policy_gradient import PolicyGradient
from espalier.training.rl.sampling import GroupAdmission
from espalier.training.rl.update import CriticUpdate
from tests.factories.tiny_training import tiny_run
from tests.factories.training import SEARCH


class FlakySearch:
    """Loses its environment now and then."""

    def __init__(self, seed=0, lost_share=0.1):
        self._draw, self._lost_share = random.Random(seed), lost_share

    def observation(self, query):
        if self._draw.random() < self._lost_share:
            raise EnvironmentLostError("the node is gone")
        return SEARCH.observation(query)


@dataclass
class Update:
    """Rows of one minibatch, and the weights before its update."""

    rows: list
    weights: dict
    kl_coefficient: float = 0.0


@dataclass
class Step:
    """What a step sampled and learned from."""

    episodes: list = field(default_factory=list)
    """All that were sampled, lost ones included, without further terms of the reward."""
    scored: list = field(default_factory=list)
    """Groups of scored trajectories, with all terms."""
    trained: list = field(default_factory=list)
    """Groups that the step learned from."""
    of_high_entropy: list = field(default_factory=list)
    """For each trajectory learned from, whether each action token was kept."""
    updates: list = field(default_factory=list)
    critic_updates: list = field(default_factory=list)
    dev: list = field(default_factory=list)
    kept_tasks: int = 0
    row: dict = field(default_factory=dict)


@dataclass
class Recording:
    profile: object
    model: object
    """The policy, in float64, to be given the weights of an update."""
    critic: object
    start: dict
    steps: list


def recorded_run(folder, work, profile, search=None):
    """The recording of a whole run; its sampling engine rounds more than the trainer does."""
    run = tiny_run(folder, work, profile, search)
    models = run.loop.parts.models
    steps = [Step()]
    with _recording(steps, run):
        recording = Recording(
            profile,
            copy.deepcopy(models.policy.model).double().eval(),
            copy.deepcopy(models.critic).double() if models.critic else None,
            _copied(models.policy.model),
            steps,
        )
        run.loop.run(NullTracker())
    steps.pop(0)  # the dev questions before the first step
    for step, row in zip(steps, run.loop.progress.history, strict=True):
        step.row = row
    return recording


def _copied(module):
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def _rounded(trajectory):
    """The trajectory as an engine of few digits would record it."""
    shifts = [0.2 * math.sin(7 * place + token) for place, token in enumerate(trajectory.token_ids)]
    logprobs = [
        min(-1e-3, value + shift) if acted else 0.0
        for value, shift, acted in zip(
            trajectory.behavior_logprobs, shifts, trajectory.action_mask, strict=True
        )
    ]
    # as parquet and tensors keep them
    kept = torch.tensor(logprobs, dtype=torch.float32).tolist()
    return replace(trajectory, behavior_logprobs=tuple(kept))


class _Recorder:
    """Wraps the methods that a step calls; each wrapper adds to the newest of `steps`."""

    def __init__(self, steps, run):
        self._steps, self._run = steps, run

    def begin(self, former):
        def step(loop, number):
            self._steps.append(Step())
            row = former(loop, number)
            self._steps[-1].kept_tasks = len(loop.parts.pool.kept_ids())
            return row

        return step

    def rolled(self, former):
        def roll_out(roller, tasks, *, samples, temperature, seed):
            found = former(roller, tasks, samples=samples, temperature=temperature, seed=seed)
            if temperature == 0:
                self._steps[-1].dev += found
                return found
            found = [_rounded(one) for one in found]
            self._steps[-1].episodes += found
            return found

        return roll_out

    def sampled_ahead(self, former):
        async def sample(replica, order):
            found = await former(replica, order)
            return found._replace(trajectories=[_rounded(one) for one in found.trajectories])

        return sample

    def admitted(self, former):
        def admit(sampler, group, result):
            self._steps[-1].episodes += group.trajectories
            return former(sampler, group, result)

        return admit

    def counted(self, former):
        def count(admission, group, result):
            found = former(admission, group, result)
            self._steps[-1].scored.append(found.trajectories)
            return found

        return count

    def laid_out(self, former):
        def dense_rows(groups, *, with_observations):
            self._steps[-1].trained = list(groups)
            return former(groups, with_observations=with_observations)

        return dense_rows

    def masked(self, former):
        def masked(rule, loss_mask_BT, entropy_BT):
            found_BT = former(rule, loss_mask_BT, entropy_BT)
            self._steps[-1].of_high_entropy = [
                found_T[mask_T] for found_T, mask_T in zip(found_BT, loss_mask_BT, strict=True)
            ]
            return found_BT

        return masked

    def added(self, former):
        def add(gradient, minibatch, request, *, kl_coefficient):
            rows = [row for unit in minibatch.units for row in unit]
            weights = _copied(self._run.loop.parts.models.policy.model)
            self._steps[-1].updates.append(Update(rows, weights, kl_coefficient))
            return former(gradient, minibatch, request, kl_coefficient=kl_coefficient)

        return add

    def fitted(self, former):
        def apply(update, minibatch):
            rows = [row for unit in minibatch.units for row in unit]
            self._steps[-1].critic_updates.append(Update(rows, _copied(update.critic)))
            return former(update, minibatch)

        return apply


@contextmanager
def _recording(steps, run):
    recorder = _Recorder(steps, run)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, wrapper in (
            (RlLoop, "_step", recorder.begin),
            (Roller, "roll_out", recorder.rolled),
            (PolicyReplica, "sample", recorder.sampled_ahead),
            (AsynchronousSampler, "_admit", recorder.admitted),
            (GroupAdmission, "count", recorder.counted),
            (loop_module, "dense_rows", recorder.laid_out),
            (HighEntropyTokens, "masked", recorder.masked),
            (PolicyGradient, "add", recorder.added),
            (CriticUpdate, "apply", recorder.fitted),
        ):
            patch.setattr(owner, name, wrapper(getattr(owner, name)))
        yield

"""Self-play inside a run: the policy that trains attempts the proposed tasks."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from espalier.config import NoSelfPlayConfig, Profile, TrainingConfig, WebRLConfig
from espalier.curriculum.pool import TaskPool
from espalier.curriculum.self_play import SelfPlay
from espalier.environments import family_of
from espalier.environments.mixins import ProposesTasks
from espalier.environments.proposals import ProposalRequest, ProposedTasks, TaskProposer, Trial
from espalier.records import Task
from espalier.records.trajectory import Trajectory
from espalier.rollout.roller import TrajectorySampler
from espalier.training.parallel import Processes
from espalier.training.rl.models import Critic, Layout, Models, initial_values
from espalier.training.rl.reward_functions import RewardFunction


def shared_proposer(
    profile: Profile, inputs: Mapping[str, Path], processes: Processes
) -> TaskProposer | None:
    """Return the proposer of tasks, shared by all processes; None where self-play is off."""
    if isinstance(profile.self_play, NoSelfPlayConfig):
        return None
    own = None
    if processes.is_first:
        family = family_of(profile)
        assert isinstance(family, ProposesTasks), "or the profile is refused"
        own = family.proposer(inputs["knowledge"], inputs["accepted"])
    return RankZeroProposer(own, processes)


def build_self_play(
    proposer: TaskProposer,
    profile: Profile,
    pool: TaskPool,
    roller: TrajectorySampler,
    models: Models,
    layout: Layout,
) -> SelfPlay:
    """Build self-play as the profile sets it.

    Args:
        proposer: proposes the tasks.
        profile: profile of the run.
        pool: pool that training draws from.
        roller: samples the attempts, over the documents that training searches; shared by all
            processes.
        models: their critic estimates the tasks' values if the profile says so.
        layout: how the critic's rows are packed.
    """
    config = profile.self_play
    assert not isinstance(config, NoSelfPlayConfig), "without self-play there is no proposer"
    asks_critic = isinstance(config, WebRLConfig) and config.value == "critic"
    trials = PolicyTrials(
        roller,
        layout,
        models.critic if asks_critic else None,
        profile.training,
        samples=config.rollouts_per_task,
        seed=profile.seed,
    )
    return SelfPlay(config, proposer, pool, trials, seed=profile.seed)


class RankZeroProposer:
    """Rank 0 proposes for all processes: a model's answers are not reproducible from a seed."""

    def __init__(self, own: TaskProposer | None, processes: Processes) -> None:
        """Set rank 0's proposer; on ranks > 0 `own` is None."""
        self._own = own
        self._processes = processes

    def propose(self, order: ProposalRequest) -> ProposedTasks:
        """Return the tasks that rank 0 proposed."""
        own = ProposedTasks((), {}) if self._own is None else self._own.propose(order)
        return self._processes.broadcast(own)


class JudgedRoller:
    """Samples as another roller does; success is decided by the outcomes of training."""

    def __init__(self, roller: TrajectorySampler, judge: RewardFunction) -> None:
        """Set the roller, and `judge`, which gives attempts the outcomes that training uses."""
        self._roller = roller
        self._judge = judge

    def roll_out(
        self, tasks: Sequence[Task], *, samples: int, temperature: float, seed: int
    ) -> list[Trajectory]:
        """Sample `samples` trajectories of every task, with the outcomes that training uses."""
        sampled = self._roller.roll_out(tasks, samples=samples, temperature=temperature, seed=seed)
        judged = iter(self._judge([one for one in sampled if not one.is_lost]))
        return [one if one.is_lost else next(judged) for one in sampled]


class PolicyTrials:
    """Samples attempts at tasks from the current policy; a critic may estimate their values."""

    def __init__(
        self,
        roller: TrajectorySampler,
        layout: Layout,
        critic: Critic | None,
        config: TrainingConfig,
        *,
        samples: int,
        seed: int,
    ) -> None:
        """Store what the trials need.

        Args:
            roller: samples the attempts; shared by all processes.
            layout: how the critic's rows are packed.
            critic: estimates values; None estimates none.
            config: gives the temperature of the next step, which the attempts share.
            samples: number of attempts at each task.
            seed: seed of the run.
        """
        self._roller = roller
        self._layout = layout
        self._critic = critic
        self._config = config
        self._samples = samples
        self._seed = seed

    def __call__(self, tasks: Sequence[Task], step: int) -> list[Trial]:
        """Attempt the tasks, and return the attempts with the critic's values."""
        sampled = self._roller.roll_out(
            tasks,
            samples=self._samples,
            temperature=self._config.temperature_at(step),
            seed=random.Random(f"tried:{self._seed}:{step}").getrandbits(48),
        )
        starts = range(0, len(sampled), self._samples)
        attempts = [sampled[start : start + self._samples] for start in starts]
        values = self._values(attempts)
        return [
            _trial(task, tried, value)
            for task, tried, value in zip(tasks, attempts, values, strict=True)
        ]

    def _values(self, attempts: Sequence[Sequence[Trajectory]]) -> list[float]:
        """Return the critic's value of each task; NaN without a critic or without any action.

        One attempt is enough: up to the first action all attempts at a task are equal.
        """
        values = [math.nan] * len(attempts)
        if self._critic is None:
            return values
        acted = {
            number: trajectory
            for number, tried in enumerate(attempts)
            for trajectory in tried
            if any(trajectory.action_mask)
        }
        if acted:
            expected_B = initial_values(list(acted.values()), self._critic, self._layout)
            for number, value in zip(acted, expected_B.tolist(), strict=True):
                values[number] = value
        return values


def _trial(task: Task, attempts: Sequence[Trajectory], value: float) -> Trial:
    counted = [trajectory for trajectory in attempts if not trajectory.is_lost]
    solved = sum(trajectory.is_right for trajectory in counted)
    return Trial(task, len(counted), solved, value)

"""Self-play of a run: posed tasks are tried by the very policy that trains."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from espalier.config import NoSelfPlayConfig, Profile, TrainingConfig, WebRLConfig
from espalier.curriculum.pool import TaskPool
from espalier.curriculum.self_play.phases import SelfPlay
from espalier.environments import family_of
from espalier.records import Task
from espalier.records.trajectory import Trajectory
from espalier.rollout.roller import RollsOut
from espalier.synthesis.self_play import Order, Posed, PosesTasks, Trial
from espalier.training.parallel import Processes
from espalier.training.rl.assessment import Models
from espalier.training.rl.critic import Critic
from espalier.training.rl.dense_scoring import Layout, dense_scores
from espalier.training.rl.rows import Group, dense_rows


def shared_poser(
    profile: Profile, inputs: Mapping[str, Path], processes: Processes
) -> PosesTasks | None:
    """Whoever poses tasks to this run; none where the profile asks for no self-play."""
    if isinstance(profile.self_play, NoSelfPlayConfig):
        return None
    own = None
    if processes.is_first:
        own = family_of(profile).proposer(inputs["knowledge"], inputs["accepted"])
    return FirstPoser(own, processes)


def self_play_with(
    poser: PosesTasks,
    profile: Profile,
    pool: TaskPool,
    roller: RollsOut,
    models: Models,
    layout: Layout,
) -> SelfPlay:
    """Self-play as the profile asks for it.

    Args:
        poser: of the tasks.
        profile: of the run.
        pool: that training draws from.
        roller: tries them; of all processes, over the documents that training searches.
        models: the critic among them, where it is to say what a task is worth.
        layout: how the critic reads trajectories.
    """
    config = profile.self_play
    assert not isinstance(config, NoSelfPlayConfig), "nobody poses tasks where self-play is off"
    asks_critic = isinstance(config, WebRLConfig) and config.value == "critic"
    trials = Trials(
        roller,
        layout,
        models.critic if asks_critic else None,
        profile.training,
        samples=config.rollouts_per_task,
        seed=profile.seed,
    )
    return SelfPlay(config, poser, pool, trials, seed=profile.seed)


class FirstPoser:
    """The first process poses for all: a model's answers are no function of a seed."""

    def __init__(self, own: PosesTasks | None, processes: Processes) -> None:
        """`own` is None in the other processes."""
        self._own = own
        self._processes = processes

    def pose(self, order: Order) -> Posed:
        """See `PosesTasks`."""
        own = Posed((), {}) if self._own is None else self._own.pose(order)
        return self._processes.of_first(own)


class Trials:
    """Has the policy of the moment try tasks, and asks the critic where there is one to ask."""

    def __init__(
        self,
        roller: RollsOut,
        layout: Layout,
        critic: Critic | None,
        config: TrainingConfig,
        *,
        samples: int,
        seed: int,
    ) -> None:
        """Wire the trials of a run.

        Args:
            roller: of all processes, over the documents that training searches.
            layout: how the critic reads trajectories.
            critic: None where nobody asks it.
            config: says at which temperature the next step samples, and so do the attempts.
            samples: attempts at each task.
            seed: of the run.
        """
        self._roller = roller
        self._layout = layout
        self._critic = critic
        self._config = config
        self._samples = samples
        self._seed = seed

    def __call__(self, tasks: Sequence[Task], step: int) -> list[Trial]:
        """See `TriesTasks`."""
        played = self._roller.roll_out(
            tasks,
            samples=self._samples,
            temperature=self._config.temperature_at(step),
            seed=random.Random(f"tried:{self._seed}:{step}").getrandbits(48),
        )
        starts = range(0, len(played), self._samples)
        attempts = [played[start : start + self._samples] for start in starts]
        values = self._values(attempts)
        return [
            _trial(task, tried, value)
            for task, tried, value in zip(tasks, attempts, values, strict=True)
        ]

    def _values(self, attempts: Sequence[Sequence[Trajectory]]) -> list[float]:
        """What the critic expects of each task; NaN where nobody asks, or the policy never acted.

        One attempt is enough: before the first action, all attempts at a task are the same.
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


def initial_values(trajectories: Sequence[Trajectory], critic: Critic, layout: Layout) -> Tensor:
    """V(s0): what the critic expects of each trajectory before its first action.

    Args:
        trajectories: B of them, each with an action.
        critic: of the moment.
        layout: how its rows are packed.

    Returns:
        [B] reward units, on the CPU.
    """
    rows = dense_rows([Group(trajectories=tuple(trajectories))], with_observations=False)
    [values_BT] = dense_scores(rows.sequences, lambda batch: [critic(batch)], layout)
    first_B1 = rows.action_mask_BT.int().argmax(dim=1, keepdim=True)
    return values_BT.gather(1, first_B1)[:, 0]


def _trial(task: Task, attempts: Sequence[Trajectory], value: float) -> Trial:
    heard = [trajectory for trajectory in attempts if not trajectory.is_lost]
    solved = sum(trajectory.is_right for trajectory in heard)
    return Trial(task, len(heard), solved, value)

"""Rolling tasks out under one policy: many episodes at once, as coroutines over an engine."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol, Self

from transformers import PreTrainedTokenizerBase

from espalier.config import ExplorationConfig, Profile
from espalier.dialects.dialect import Dialect
from espalier.environments import Environments
from espalier.policy.loading import Policy, load_policy, load_tokenizer
from espalier.records import Task
from espalier.records.trajectory import FinishReason, Trajectory
from espalier.rollout.drift import DriftCount
from espalier.rollout.engines.choice import lockstep_engine
from espalier.rollout.engines.engine import Engine, Sampling
from espalier.rollout.engines.vllm import VllmEngine
from espalier.rollout.episode import EpisodeContext, play_episode
from espalier.rollout.exploration import kind_choice
from espalier.rollout.tool_runner import ToolRunner

NO_EXPLORATION = ExplorationConfig()


def dialect_of(
    tokenizer: PreTrainedTokenizerBase, environments: Environments, profile: Profile
) -> Dialect:
    """How the profile's policy speaks in these environments.

    Raises:
        PolicyError: the tokenizer has no chat template.
    """
    return Dialect(
        tokenizer,
        environments.tools,
        name=profile.policy.dialect,
        instructions=environments.instructions,
    )


class RollsOut(Protocol):
    """What a stage needs of a roller; the scripted one of the tests is another."""

    def roll_out(
        self, tasks: Sequence[Task], *, samples: int, temperature: float, seed: int
    ) -> list[Trajectory]:
        """Play every task `samples` times; see `Roller.roll_out`."""
        ...


class Roller:
    """Samples episodes of a policy that may be updated between calls."""

    def __init__(
        self,
        engine: Engine,
        dialect: Dialect,
        environments: Environments,
        profile: Profile,
        *,
        exploration: ExplorationConfig = NO_EXPLORATION,
    ) -> None:
        """Wire a roller.

        Args:
            engine: samples; built with `dialect` as its stop rule.
            dialect: of the policy.
            environments: makes the environment of a task.
            profile: its `episode` and `rollout` sections hold.
            exploration: how tokens are drawn, for training alone.
        """
        self.dialect = dialect
        self.drift = DriftCount(dialect, profile.rollout)
        self.seconds = 0.0
        self.losses: Counter[FinishReason] = Counter()
        """Episodes whose environment failed, by how."""
        self._engine = engine
        self._environments = environments
        self._profile = profile
        self._exploration = exploration
        self._kind_choice = kind_choice(dialect, exploration.kind_epsilon)

    @classmethod
    def local(
        cls,
        policy: Policy,
        environments: Environments,
        profile: Profile,
        *,
        exploration: ExplorationConfig = NO_EXPLORATION,
    ) -> Self:
        """A roller over a policy in memory, which a trainer may change between calls."""
        dialect = dialect_of(policy.tokenizer, environments, profile)
        engine = lockstep_engine(policy.model, dialect, max_rows=profile.rollout.max_rows)
        return cls(engine, dialect, environments, profile, exploration=exploration)

    @classmethod
    def open(
        cls,
        policy_dir: Path,
        environments: Environments,
        profile: Profile,
        *,
        exploration: ExplorationConfig = NO_EXPLORATION,
    ) -> Self:
        """A roller over the policy directory `policy_dir`, by the engine that the profile names.

        Raises:
            PolicyError: not a policy directory.
            EngineError: the server that the profile names cannot be used.
        """
        if profile.rollout.engine == "lockstep":
            return cls.local(
                load_policy(policy_dir), environments, profile, exploration=exploration
            )
        dialect = dialect_of(load_tokenizer(policy_dir), environments, profile)
        config = profile.rollout
        engine = VllmEngine(config.vllm, dialect, max_rows=config.max_rows)
        roller = cls(engine, dialect, environments, profile, exploration=exploration)
        roller.load_weights(policy_dir, version=0)
        return roller

    @property
    def policy_version(self) -> int:
        """Of the weights that sample; set by whoever updates a policy in memory."""
        return self._engine.policy_version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self._engine.policy_version = version

    @property
    def action_tokens(self) -> int:
        """Tokens sampled so far."""
        return self._engine.counters.sampled

    @property
    def total_tokens(self) -> int:
        """Tokens forwarded so far, prompts and observations included."""
        return self._engine.counters.forwarded

    @property
    def unique_tokens(self) -> int:
        """Tokens so far that any engine would have had to forward."""
        return self._engine.counters.unique

    def load_weights(self, policy_dir: Path, version: int) -> None:
        """Sample from the weights of `policy_dir` from now on; see `Engine.load_weights`."""
        asyncio.run(self._engine.load_weights(policy_dir, version))

    def roll_out(
        self, tasks: Sequence[Task], *, samples: int, temperature: float, seed: int
    ) -> list[Trajectory]:
        """Play every task `samples` times.

        Args:
            tasks: what to play.
            samples: trajectories of each task; they share a group id.
            temperature: 0 is greedy.
            seed: of the draw; where tools run in the loop, the same call with the same weights
                gives the same trajectories.

        Returns:
            len(tasks) * samples trajectories, task by task. One whose environment failed is among
            them: `is_lost`, and not scored.
        """
        started = time.perf_counter()
        trajectories = asyncio.run(
            self.play(tasks, samples=samples, temperature=temperature, seed=seed)
        )
        self.seconds += time.perf_counter() - started
        return trajectories

    async def play(
        self, tasks: Sequence[Task], *, samples: int, temperature: float, seed: int
    ) -> list[Trajectory]:
        """What `roll_out` does, as a coroutine; one at a time."""
        played = [task for task in tasks for _ in range(samples)]
        async with self.serving() as context:
            return await asyncio.gather(
                *(
                    self.play_one(task, context, temperature=temperature, name=f"{seed}:{index}")
                    for index, task in enumerate(played)
                )
            )

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[EpisodeContext]:
        """The time in which `play_one` may be called, as often as one likes; one at a time."""
        config = self._profile.rollout
        async with self._engine.serving():
            yield EpisodeContext(
                engine=self._engine,
                dialect=self.dialect,
                environments=self._environments,
                tools=ToolRunner(workers=config.tool_workers, timeout_s=config.tool_timeout_s),
                limits=self._profile.episode,
            )

    async def play_one(
        self, task: Task, context: EpisodeContext, *, temperature: float, name: str
    ) -> Trajectory:
        """Play one episode.

        Args:
            task: what to play.
            context: what `serving` yields.
            temperature: 0 is greedy.
            name: what the draw is a function of, beside the weights.
        """
        played = await play_episode(task, self._sampling(temperature, name), context)
        trajectory = played.trajectory
        if trajectory.is_lost:
            self.losses[trajectory.finish_reason] += 1
        self.drift.compare(played)
        return trajectory

    def _sampling(self, temperature: float, name: str) -> Sampling:
        seed = random.Random(f"episode:{name}").getrandbits(63)
        return Sampling(
            temperature=temperature,
            seed=seed,
            top_p=self._exploration.top_p,
            top_k=self._exploration.top_k,
            kind_choice=self._kind_choice,
        )

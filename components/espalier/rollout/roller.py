"""Rolling tasks out under one policy: many episodes side by side, in waves of the engine's rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

import torch
from transformers import Lfm2ForCausalLM

from espalier.artifacts import PolicyError
from espalier.config import Profile
from espalier.environments import STOP_TAGS, SearchQA
from espalier.environments.search_qa import Searcher
from espalier.policy.loading import Policy, load_policy
from espalier.policy.rendering import Rendering
from espalier.rollout.engines import HfDecoder, Lfm2Decoder, LockstepEngine, Sampling
from espalier.rollout.episode import Episode
from espalier.rollout.trajectory import Trajectory
from espalier.tasks import Task


class RollsOut(Protocol):
    """What a stage needs of a roller; the scripted one of the tests is another."""

    def roll_out(
        self, tasks: Sequence[Task], *, samples: int, temperature: float, seed: int
    ) -> list[Trajectory]:
        """Play every task `samples` times; see `Roller.roll_out`."""
        ...


class Roller:
    """Samples episodes of a policy that may be updated between calls."""

    def __init__(self, policy: Policy, search: Searcher, profile: Profile) -> None:
        self.policy_version = 0
        self.rendering = Rendering(policy.tokenizer, STOP_TAGS)
        self.seconds = 0.0
        self._search = search
        self._profile = profile
        model = policy.model
        decoder = Lfm2Decoder(model) if isinstance(model, Lfm2ForCausalLM) else HfDecoder(model)
        pad_id = policy.tokenizer.pad_token_id
        self._engine = LockstepEngine(
            decoder,
            compact_below=profile.rollout.compact_below,
            pad_id=int(pad_id) if isinstance(pad_id, int) else 0,
        )

    @classmethod
    def open(cls, policy_dir: Path, search: Searcher, profile: Profile) -> Self:
        """A roller over the policy directory `policy_dir`."""
        return cls(load_policy(policy_dir), search, profile)

    @property
    def action_tokens(self) -> int:
        """Tokens sampled so far."""
        return self._engine.counters.sampled

    @property
    def total_tokens(self) -> int:
        """Tokens forwarded so far, prompts and observations included."""
        return self._engine.counters.forwarded

    def roll_out(
        self, tasks: Sequence[Task], *, samples: int, temperature: float, seed: int
    ) -> list[Trajectory]:
        """Play every task `samples` times.

        Args:
            tasks: what to play.
            samples: trajectories of each task; they share a group id.
            temperature: 0 is greedy.
            seed: of the draw; the same call with the same weights gives the same trajectories.

        Returns:
            len(tasks) * samples trajectories, task by task.
        """
        started = time.perf_counter()
        generator = torch.Generator().manual_seed(seed)
        sampling = Sampling(temperature=temperature, generator=generator)
        episodes = [self._episode(task) for task in tasks for _ in range(samples)]
        wave = self._profile.rollout.max_rows
        for start in range(0, len(episodes), wave):
            rows = [episode for episode in episodes[start : start + wave] if not episode.done]
            if rows:
                limit = self._profile.episode.max_tokens
                self._engine.play(rows, sampling, max_tokens=limit)
        self.seconds += time.perf_counter() - started
        return [
            episode.trajectory(
                group_id=tasks[index // samples].task_id, policy_version=self.policy_version
            )
            for index, episode in enumerate(episodes)
        ]

    def _episode(self, task: Task) -> Episode:
        if task.environment != "search_qa":
            raise PolicyError(
                f"task {task.task_id}: no environment named {task.environment!r}; known: search_qa"
            )
        environment = SearchQA(
            task,
            self._search,
            max_turns=self._profile.episode.max_turns,
            reward=self._profile.training.reward,
        )
        return Episode(task, environment, self.rendering, self._profile.episode)

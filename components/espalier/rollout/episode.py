"""One episode: the policy acts, the environment answers, until it is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from espalier.config import EpisodeConfig
from espalier.dialects.dialect import Dialect, TurnPieces
from espalier.environments import Environment, EnvironmentLostError, Environments
from espalier.records import Message, Task
from espalier.records.trajectory import FinishReason, RewardBreakdown, Trajectory
from espalier.rollout.context import Context
from espalier.rollout.engines.engine import Engine, Sampling
from espalier.rollout.tool_runner import CallTimeoutError, ToolRunner
from espalier.rollout.transcript import Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeContext:
    """What all episodes of a roll-out are played with."""

    engine: Engine
    dialect: Dialect
    environments: Environments
    tools: ToolRunner
    limits: EpisodeConfig


class PlayedEpisode(NamedTuple):
    """A trajectory, and what the policy read in it."""

    trajectory: Trajectory
    prompt: tuple[Message, ...]
    pieces: Sequence[TurnPieces]


async def play_episode(task: Task, sampling: Sampling, context: EpisodeContext) -> PlayedEpisode:
    """Play `task` once.

    An environment that is stuck or lost ends this episode and no other: its trajectory says so and
    is not scored.
    """
    transcript = Transcript(task)
    view = Context(transcript, context.engine, sampling, context.dialect, context.limits)
    run = context.tools.run
    environment: Environment | None = None
    prompt = task.prompt

    def record(reason: FinishReason, reward: RewardBreakdown) -> PlayedEpisode:
        trajectory = transcript.trajectory(environment, reason, reward)
        return PlayedEpisode(trajectory, prompt, transcript.pieces)

    try:
        environment = await run(context.environments, task)
        prompt = (await run(environment.reset, task)).messages
        has_room = await view.begin(prompt)
        while environment.finish_reason is None:
            action = await view.act() if has_room else None
            if action is None:
                environment.cut_off(FinishReason.MAX_TOKENS)
            else:
                step = await run(environment.step, action)
                transcript.pay(step.reward)
                has_room = not step.messages or await view.observe(step.messages)
        reward = await run(environment.score)
        return record(environment.finish_reason, reward)
    except CallTimeoutError:
        return record(FinishReason.TIMEOUT, {})
    except EnvironmentLostError:
        return record(FinishReason.SANDBOX_LOST, {})
    finally:
        view.close()

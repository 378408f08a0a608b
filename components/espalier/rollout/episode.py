"""One episode: the policy acts, the environment answers, until it is over."""

from __future__ import annotations

from dataclasses import dataclass

from espalier.config import EpisodeConfig
from espalier.environments import Environment, EnvironmentLostError, Environments
from espalier.policy.rendering import Rendering
from espalier.rollout.context import Context
from espalier.rollout.engines.engine import Engine, Sampling
from espalier.rollout.tool_runner import CallTimeoutError, ToolRunner
from espalier.rollout.trajectory import FinishReason, Trajectory
from espalier.rollout.transcript import Transcript
from espalier.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What all episodes of a roll-out are played with."""

    engine: Engine
    rendering: Rendering
    environments: Environments
    tools: ToolRunner
    limits: EpisodeConfig


async def play_episode(task: Task, sampling: Sampling, stage: Stage) -> Trajectory:
    """Play `task` once.

    An environment that is stuck or lost ends this episode and no other: its trajectory says so and
    is not scored.
    """
    transcript = Transcript(task)
    context = Context(transcript, stage.engine, sampling, stage.rendering, stage.limits)
    environment: Environment | None = None
    try:
        has_room = await context.begin(stage.rendering.prompt_ids(task.prompt))
        environment = await stage.tools.run(stage.environments, task)
        while environment.finish_reason is None:
            action = await context.act() if has_room else None
            if action is None:
                environment.cut_off(FinishReason.MAX_TOKENS)
            else:
                step = await stage.tools.run(environment.step, action)
                transcript.pay(step.reward)
                has_room = step.observation is None or await context.observe(step.observation)
        reward = await stage.tools.run(environment.score)
        return transcript.trajectory(environment, environment.finish_reason, reward)
    except CallTimeoutError:
        return transcript.trajectory(environment, FinishReason.TIMEOUT, {})
    except EnvironmentLostError:
        return transcript.trajectory(environment, FinishReason.SANDBOX_LOST, {})
    finally:
        context.close()

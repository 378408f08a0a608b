"""One episode: the policy acts, the environment answers, until it is over."""

from __future__ import annotations

from dataclasses import dataclass, replace

from espalier.config import EpisodeConfig
from espalier.environments import Environment, EnvironmentLostError, Environments
from espalier.policy.rendering import Rendering
from espalier.rollout.engines.engine import Engine, Sampling, Session
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
    context = _Context(transcript, sampling, stage)
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


class _Context:
    """What the policy has in view: a session, and after it another where it overflows."""

    def __init__(self, transcript: Transcript, sampling: Sampling, stage: Stage) -> None:
        self._transcript = transcript
        self._sampling = sampling
        self._stage = stage
        self._session: Session | None = None

    async def begin(self, prompt_ids: tuple[int, ...]) -> bool:
        """Read the prompt; whether there is room for it."""
        if len(prompt_ids) >= self._stage.limits.max_tokens:
            return False
        self._transcript.read_prompt(prompt_ids)
        await self._open()
        return True

    async def act(self) -> str | None:
        """The policy's next message; None where it did not come to an end."""
        assert self._session is not None, "a context begins with a prompt"
        limits = self._stage.limits
        room = limits.max_tokens - self._transcript.context_length
        action = await self._session.sample(max_tokens=min(limits.max_turn_tokens, room))
        text = self._stage.rendering.text(action.token_ids)
        self._transcript.act(action, text)
        return text if action.stopped else None

    async def observe(self, text: str) -> bool:
        """Read what the environment answered; whether there is room for it."""
        assert self._session is not None, "a context begins with a prompt"
        limits, transcript = self._stage.limits, self._transcript
        token_ids = self._stage.rendering.observation_ids(text)
        length = transcript.context_length + len(token_ids)
        dropped = 0
        if limits.overflow == "truncate":
            dropped = transcript.drop_observations(
                length + limits.max_turn_tokens - limits.max_tokens
            )
        if length - dropped >= limits.max_tokens:
            return False
        if dropped:
            transcript.begin_window()
        transcript.observe(token_ids, text)
        if dropped:
            await self._open()
        else:
            self._session.observe(token_ids)
        return True

    def close(self) -> None:
        """Give the session back."""
        if self._session is not None:
            self._session.close()
            self._session = None

    async def _open(self) -> None:
        self.close()
        engine, transcript = self._stage.engine, self._transcript
        # a window that drew the same numbers again would be likely to say the same again
        seed = self._sampling.seed + transcript.num_windows
        self._session = await engine.open(
            transcript.context_ids, replace(self._sampling, seed=seed)
        )
        transcript.policy_version = engine.policy_version

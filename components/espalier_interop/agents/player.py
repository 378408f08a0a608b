"""Episodes that a program of the user plays: the program is started, recorded and scored."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from espalier.config import AgentConfig, EpisodeConfig, ServingConfig
from espalier.dialects.dialect import Dialect
from espalier.environments import Environment, Environments
from espalier.environments.losses import environment_losses, policy_losses, release, score
from espalier.records import EngineError, FinalAnswer, Malformed, PolicyError, Task
from espalier.records.message import JsonObject, ToolSpec
from espalier.records.trajectory import FinishReason, Trajectory
from espalier.rollout.engines.engine import Engine, Sampling
from espalier.rollout.episode import ToolRunner
from espalier_interop.agents.process import ATTEMPT, AgentExit, agent_programs
from espalier_interop.recording.attempt import Attempt, CallLimits, Policy
from espalier_interop.recording.dialects import RequestDialects
from espalier_interop.recording.endpoint import RecordingEndpoint, recording
from espalier_interop.recording.graph import AttemptOutcome, RecordedCall
from espalier_interop.recording.recorder import Recorder
from espalier_interop.verifiers.runs import env_server_runs

if TYPE_CHECKING:
    from espalier.dialects import DialectName

MODEL = "policy"
"""The model name that agents are given; the endpoint answers every other name as well."""
KEY = "recorded"
"""Client libraries insist on an API key; the secret is the address of the attempt."""
_MOST_FAILURES = 8
"""After this many failed attempts in a row, with no success, the program itself is at fault."""


def call_limits(config: AgentConfig, episode: EpisodeConfig) -> CallLimits:
    """Return the limits of one call of an attempt."""
    return CallLimits(
        max_tokens=episode.max_tokens,
        max_answer_tokens=episode.max_turn_tokens,
        max_calls=config.max_calls,
        call_timeout_s=config.call_timeout_s,
        branches_on_edits=config.edits == "branch",
    )


def own_dialect(dialect: Dialect) -> Dialect:
    """Return the dialect without the family's instructions: an agent writes its own prompts."""
    name = cast("DialectName", dialect.syntax.name)
    return Dialect(dialect.tokenizer, dialect.tools, name=name)


def addresses(base: str, attempt: Attempt) -> dict[str, str]:
    """Return the environment variables that tell an agent's libraries where the policy answers.

    Args:
        base: address of the endpoint.
        attempt: the attempt that the calls belong to.
    """
    url = f"{base}/attempts/{attempt.attempt_id}"
    return {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": KEY,
        "ESPALIER_MODEL": MODEL,
        ATTEMPT: attempt.attempt_id,
        "ESPALIER_REWARD_URL": f"{url}/reward",
    }


def task_json(task: Task, tools: tuple[ToolSpec, ...]) -> str:
    """Return the JSON of a task that an agent reads, without what only its verifier knows."""
    told: JsonObject = {
        "task_id": task.task_id,
        "messages": [message.model_dump(mode="json") for message in task.prompt],
        "tools": [tool.as_function() for tool in tools],
    }
    return json.dumps(told)


PlayAttempt = Callable[[Task, Mapping[str, str]], Awaitable[AgentExit]]
"""A function that plays one attempt at a task, given the variables of `addresses`."""


@dataclass(slots=True)
class AgentPlayer:
    """Plays episodes by running the agent's program against a recorder."""

    config: AgentConfig
    run: PlayAttempt
    recorder: Recorder
    base: str
    """Address of the recorder's endpoint."""
    environments: Environments
    tools: ToolRunner
    places: asyncio.Semaphore
    """Limits how many programs run at one time."""
    failures: int = 0
    """Number of attempts in a row whose program failed."""

    async def play(self, task: Task, sampling: Sampling) -> Trajectory:
        """Play one attempt at a task.

        Where the program fails, exceeds its time or loses what a trajectory needs, only its own
        attempt is lost, and gets no reward.

        Raises:
            PolicyError: the program failed in many attempts in a row.
            EngineError: the engine broke.
            ProfileError: the program cannot be started.
        """
        async with self.places:
            attempt = self.recorder.begin(sampling=sampling)
            try:
                with self.recorder.deadline(attempt, self.config.deadline_s):
                    exit_ = await self.run(task, addresses(self.base, attempt))
                if attempt.failure is None:
                    self._judge_exit(attempt, exit_)
            finally:
                self.recorder.close(attempt)
        if attempt.failure is not None:
            raise EngineError(f"the engine broke: {attempt.failure}") from attempt.failure
        verdict = None
        if attempt.lost is None and self.config.score == "verifier":
            verdict = await self._verified(task, attempt)
        return self.recorder.ended(attempt, verdict, task_id=task.task_id, group_id=task.task_id)

    def _judge_exit(self, attempt: Attempt, exit_: AgentExit) -> None:
        if exit_.status == 0:
            self.failures = 0
            if exit_.terms is not None and attempt.lost is None:
                attempt.post_reward(exit_.terms)
            return
        if exit_.status is None:
            because = f"it was not over within {self.config.deadline_s:g} s"
            attempt.lose(FinishReason.TIMEOUT, because)
            return
        because = f"the agent ended with status {exit_.status}: {exit_.told or 'it wrote nothing'}"
        if not attempt.open_calls:  # the calls themselves have marked the attempt as lost
            attempt.lose(FinishReason.AGENT_FAILED, because)
        self.failures += 1
        if self.failures >= _MOST_FAILURES:
            raise PolicyError(
                f"{self.config.told} failed {self.failures} times in a "
                f"row; the last time it {because.removeprefix('the agent ')}"
            )

    async def _verified(self, task: Task, attempt: Attempt) -> AttemptOutcome | None:
        """Return the family's verdict on the last answer; None if the environment was lost."""
        environment: Environment | None = None
        run = self.tools.run
        try:
            with environment_losses() as lost:
                environment = await run(self.environments, task)
                await run(environment.reset, task)
                with policy_losses(environment):
                    # the newest answer that calls no tool
                    final = (c for c in attempt.graph.calls[::-1] if not c.said.tool_calls)
                    await _answer(environment, next(final, None), run)
                reward = await score(environment, run)
                reason = environment.finish_reason
                assert reason is not None, "an episode that is scored has ended"
                return AttemptOutcome(reward, environment.answer, reason)
            attempt.lose(lost.reason, lost.because or "the verifier took too long")
            return None
        finally:
            release(environment)


async def _answer(
    environment: Environment, call: RecordedCall | None, run: Callable[..., Awaitable[object]]
) -> None:
    """End the episode with the policy's last answer."""
    if call is not None:
        said = call.said.content
        action = FinalAnswer(said) if call.is_action else Malformed("not an action", said)
        await run(environment.step, action)
    if environment.finish_reason is None:
        environment.cut_off(FinishReason.MAX_TURNS)


@asynccontextmanager
async def agent_player(
    config: AgentConfig,
    engine: Engine,
    dialect: Dialect,
    environments: Environments,
    tools: ToolRunner,
    episode: EpisodeConfig,
) -> AsyncGenerator[AgentPlayer]:
    """Yield a player over a running engine; its endpoint listens on this machine only.

    Args:
        config: the agent.
        engine: samples the policy's messages.
        dialect: dialect of the policy, with the family's tools.
        environments: score the answers.
        tools: runs the verifier, within its time limit.
        episode: limits of a call.
    """
    policy = Policy(engine, RequestDialects(own_dialect(dialect)))
    recorder = Recorder(policy, call_limits(config, episode))
    bounds = ServingConfig(
        max_body_bytes=config.max_body_bytes, write_timeout_s=config.call_timeout_s, drain_s=1.0
    )
    endpoint = RecordingEndpoint(recorder, bounds)
    async with recording(endpoint, bounds) as base, _runs(config, environments) as run:
        yield AgentPlayer(
            config=config,
            run=run,
            recorder=recorder,
            base=base,
            environments=environments,
            tools=tools,
            places=asyncio.Semaphore(config.processes),
        )


@asynccontextmanager
async def _runs(config: AgentConfig, environments: Environments) -> AsyncGenerator[PlayAttempt]:
    """Yield how the profile has attempts played: by a server, or by a command."""
    if config.verifiers is not None:
        runs = env_server_runs(config)
        await runs.start()  # before the first attempt, whose time limit it would use up
        yield runs.play
        return
    async with agent_programs(config) as programs:

        async def play(task: Task, variables: Mapping[str, str]) -> AgentExit:
            told = {"ESPALIER_TASK": task_json(task, environments.tools)}
            return await programs.play({**variables, **told})

        yield play

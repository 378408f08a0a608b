"""Episodes that a program of the user's plays: started for an attempt, recorded, judged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from espalier.config import AgentConfig, EpisodeConfig, ServingConfig
from espalier.dialects.dialect import Dialect
from espalier.environments import (
    Environment,
    EnvironmentLostError,
    Environments,
    ProgramBrokeSandboxError,
)
from espalier.records import EngineError, FinalAnswer, Malformed, PolicyError, Task
from espalier.records.message import JsonObject, ToolSpec
from espalier.records.trajectory import FinishReason, Trajectory
from espalier.rollout.agent_process import AgentExit, agent_programs
from espalier.rollout.engines.engine import Engine, Sampling
from espalier.rollout.env_server import env_server_runs
from espalier.rollout.episode import CallTimeoutError, ToolRunner
from espalier.rollout.recording.attempt import Attempt, CallLimits, Policy
from espalier.rollout.recording.dialects import RequestDialects
from espalier.rollout.recording.endpoint import RecordingEndpoint, recording
from espalier.rollout.recording.graph import AttemptOutcome, RecordedCall
from espalier.rollout.recording.recorder import Recorder

if TYPE_CHECKING:
    from espalier.dialects import DialectName

MODEL = "policy"
"""What agents are told to call the policy; every other name is answered as well."""
KEY = "recorded"
"""Clients insist on a key; the address of an attempt is the secret."""
_MOST_FAILURES = 8
"""So many failures in a row, and no attempt that went well, are a fault of the program."""


def call_limits(config: AgentConfig, episode: EpisodeConfig) -> CallLimits:
    """What a call of an attempt may take."""
    return CallLimits(
        max_tokens=episode.max_tokens,
        max_answer_tokens=episode.max_turn_tokens,
        max_calls=config.max_calls,
        call_timeout_s=config.call_timeout_s,
        branches_on_edits=config.edits == "branch",
    )


def own_dialect(dialect: Dialect) -> Dialect:
    """The dialect without the family's instructions: an agent writes its prompts itself."""
    name = cast("DialectName", dialect.syntax.name)
    return Dialect(dialect.tokenizer, dialect.tools, name=name)


def addresses(base: str, attempt: Attempt) -> dict[str, str]:
    """The variables that tell an agent's libraries where the policy answers.

    Args:
        base: of the endpoint.
        attempt: in whose name is asked.
    """
    url = f"{base}/attempts/{attempt.attempt_id}"
    return {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": KEY,
        "ESPALIER_MODEL": MODEL,
        "ESPALIER_REWARD_URL": f"{url}/reward",
    }


def task_json(task: Task, tools: tuple[ToolSpec, ...]) -> str:
    """What an agent is told of a task: never what its verifier knows."""
    told: JsonObject = {
        "task_id": task.task_id,
        "messages": [message.model_dump(mode="json") for message in task.prompt],
        "tools": [tool.as_function() for tool in tools],
    }
    return json.dumps(told)


PlayAttempt = Callable[[Task, Mapping[str, str]], Awaitable[AgentExit]]
"""Plays a task once, given the variables of `addresses`, in the agent's time."""


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
    """Programs that may run."""
    failures: int = 0
    """Attempts in a row whose program failed."""

    async def play(self, task: Task, sampling: Sampling) -> Trajectory:
        """Play one attempt at a task.

        A program that fails, is not done in time, or loses what a trajectory needs ends its attempt
        alone: that is lost, and not scored.

        Raises:
            PolicyError: the program failed in every one of many attempts.
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
        if not attempt.open_calls:  # else those have lost it
            attempt.lose(FinishReason.AGENT_FAILED, because)
        self.failures += 1
        if self.failures >= _MOST_FAILURES:
            raise PolicyError(
                f"{self.config.told} failed {self.failures} times in a "
                f"row; the last time it {because.removeprefix('the agent ')}"
            )

    async def _verified(self, task: Task, attempt: Attempt) -> AttemptOutcome | None:
        """The family's verdict on the last answer; None where its environment was lost."""
        environment: Environment | None = None
        try:
            environment = await self.tools.run(self.environments, task)
            return await self._judged(environment, task, attempt)
        except CallTimeoutError:
            attempt.lose(FinishReason.TIMEOUT, "the verifier took too long")
        except EnvironmentLostError as error:
            attempt.lose(FinishReason.SANDBOX_LOST, str(error))
        finally:
            if environment is not None and environment.finish_reason is None:
                environment.cut_off(FinishReason.SANDBOX_LOST)  # it gives back what it holds
        return None

    async def _judged(
        self, environment: Environment, task: Task, attempt: Attempt
    ) -> AttemptOutcome:
        run = self.tools.run
        await run(environment.reset, task)
        try:
            await _answer(environment, _last_answer(attempt), run)
            reward = await run(environment.score)
        except ProgramBrokeSandboxError:
            environment.cut_off(FinishReason.PROGRAM_BROKE_SANDBOX)
            reward = await run(environment.score)
        reason = environment.finish_reason
        assert reason is not None, "an episode that is scored has ended"
        return AttemptOutcome(reward, environment.answer, reason)


def _last_answer(attempt: Attempt) -> RecordedCall | None:
    """The newest answer that calls no tool."""
    return next((c for c in attempt.graph.calls[::-1] if not c.said.tool_calls), None)


async def _answer(
    environment: Environment, call: RecordedCall | None, run: Callable[..., Awaitable[object]]
) -> None:
    """End the episode with what the policy answered last."""
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
    """A player over an engine that is serving; its endpoint listens on this machine alone.

    Args:
        config: the agent.
        engine: samples.
        dialect: of the policy, with the family's tools.
        environments: judge.
        tools: runs the verifier, in its time.
        episode: bounds of a call.
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
    """How the profile has attempts played: by a server, or by a command."""
    if config.verifiers is not None:
        runs = env_server_runs(config)
        await runs.start()  # in no attempt's time
        yield runs.play
        return
    async with agent_programs(config) as programs:

        async def play(task: Task, variables: Mapping[str, str]) -> AgentExit:
            told = {"ESPALIER_TASK": task_json(task, environments.tools)}
            return await programs.play({**variables, **told})

        yield play

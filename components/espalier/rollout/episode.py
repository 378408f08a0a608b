"""One episode: the policy acts and the environment answers, until the episode is done."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar, cast

from espalier.config import EpisodeConfig
from espalier.dialects.dialect import Dialect, TurnPieces
from espalier.environments import Environment, EnvironmentLostError, Environments
from espalier.environments.daemon_threads import in_thread
from espalier.environments.losses import (
    CallTimeoutError,
    environment_losses,
    policy_losses,
    release,
    score,
)
from espalier.environments.memory import recalled_prompt
from espalier.records import Message, Task, ToolCalls
from espalier.records.spans import SpanKind, SpanLog, measured
from espalier.records.trajectory import FinishReason, RewardBreakdown, Trajectory
from espalier.rollout.context import EpisodeTranscript, PolicyContext
from espalier.rollout.engines.engine import Completion, Engine, Sampling
from espalier.rollout.waits import ENGINE_ACTION, ENGINE_PLACE, EpisodeWaits, NamedCall
from espalier.sandbox.call_time import CallTime

if TYPE_CHECKING:
    from espalier.rollout.player import Player

P = ParamSpec("P")
T = TypeVar("T")


class ToolRunner:
    """Calls an environment with a time limit, so that a slow call delays only its own episode."""

    def __init__(self, *, workers: int, timeout_s: float) -> None:
        self._workers = workers
        self.timeout_s = timeout_s
        self._free = asyncio.Semaphore(max(1, workers))

    async def run(
        self, call: Callable[P, T | Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return the result of `call`, or raise its exception.

        A coroutine function is awaited. Any other runs in a thread of its own, at most `workers` at
        a time; with 0 workers it runs on the event loop, without a time limit. The time counts
        from the beginning of the call, without what it waits for a sandbox or runs in one: see
        `CallTime`.

        Raises:
            CallTimeoutError: the call exceeded its time limit.
        """
        if inspect.iscoroutinefunction(call):
            return await self._within_time(lambda: call(*args, **kwargs))
        plain = cast("Callable[P, T]", call)
        if not self._workers:
            return plain(*args, **kwargs)
        with measured("waiting"):
            await self._free.acquire()
        try:
            return await self._within_time(lambda: in_thread(lambda: plain(*args, **kwargs)))
        finally:
            self._free.release()

    async def _within_time(self, begin: Callable[[], Awaitable[T]]) -> T:
        limit = CallTime(self.timeout_s)
        try:
            async with limit:
                return await begin()
        except TimeoutError as error:
            if limit.has_expired:
                raise CallTimeoutError from error
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeContext:
    """What all episodes of a rollout share."""

    engine: Engine
    dialect: Dialect
    environments: Environments
    tools: ToolRunner
    limits: EpisodeConfig
    agent: Player | None = None
    """Plays the episodes instead of the built-in loop."""
    waits: EpisodeWaits = field(default_factory=EpisodeWaits)
    """Records what each episode waits for."""


class _NamedCalls:
    """Calls the environment of one episode, and records what the episode waits for meanwhile."""

    def __init__(self, task_id: str, context: EpisodeContext) -> None:
        self._task_id = task_id
        self._context = context

    async def run(
        self, call: Callable[P, T | Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return the result of `call`, or raise its exception, as `ToolRunner.run` does."""
        named, tools, waits = _named(call, args), self._context.tools, self._context.waits
        with self.waiting(named.name), measured(_span_kind(named.kind, args)):
            try:
                return await tools.run(call, *args, **kwargs)
            except CallTimeoutError:
                waits.was_too_slow(self._task_id, named, tools.timeout_s)
                raise
            except EnvironmentLostError as error:
                waits.was_lost(self._task_id, named, error)
                raise

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """Within the block the episode waits for `what`."""
        return self._context.waits.wait(self._task_id, what)


def _span_kind(method: str, args: Sequence[object]) -> SpanKind:
    if method == "score":
        return "scoring"
    return "tools" if any(isinstance(one, ToolCalls) for one in args) else "other"


def _named(call: Callable[..., object], args: Sequence[object]) -> NamedCall:
    tools = [made.name for action in args if isinstance(action, ToolCalls) for made in action.calls]
    kind = getattr(call, "__name__", "")
    if tools:
        return NamedCall(kind, f"the tool {', '.join(tools)}")
    return NamedCall(kind, f"the environment's {kind}" if kind else "a new environment")


class FinishedEpisode(NamedTuple):
    """A trajectory, and the messages that the policy read."""

    trajectory: Trajectory
    prompt: tuple[Message, ...]
    """Messages at the start of the episode."""
    pieces: Sequence[TurnPieces]
    """What was written and read in each turn after them."""
    dialect: Dialect
    """The dialect of the episode, with its tools."""


async def run_episode(
    task: Task, sampling: Sampling, context: EpisodeContext, begun: Sequence[Completion] = ()
) -> FinishedEpisode:
    """Run one episode of `task`, whose first messages may be given.

    With `episode.retry` it may have several attempts, each in a fresh environment; the last one is
    scored. Everything the policy writes in them, reflections included, is one trajectory.

    The messages of `begun` are replayed in a fresh environment before the policy continues: after
    each of them it reads that environment's own answer.

    An environment that is stuck or lost ends only this episode: its trajectory has the finish
    reason TIMEOUT or SANDBOX_LOST, and no reward. If a program of the policy ended the sandbox, the
    reason is PROGRAM_BROKE_SANDBOX and the reward is that of no answer.
    """
    transcript = EpisodeTranscript(task)
    calls = _NamedCalls(task.task_id, context)
    run = calls.run
    environment: Environment | None = None
    view: PolicyContext | None = None
    prompt, dialect = task.prompt, context.dialect
    retry, given = context.limits.retry, deque(begun)

    def record(reason: FinishReason, reward: RewardBreakdown) -> FinishedEpisode:
        trajectory = transcript.trajectory(environment, reason, reward)
        timed = replace(trajectory, spans=log.spans)
        return FinishedEpisode(timed, prompt, transcript.pieces, dialect)

    log = SpanLog()
    try:
        with log.recording(), environment_losses() as lost:
            environment = await run(context.environments, task)
            prompt, tools = await run(environment.reset, task)
            dialect = dialect.with_tools(tools)
            memory = context.environments.memory
            prompt = recalled_prompt(prompt, task, memory, dialect, context.limits)
            view = PolicyContext(transcript, context.engine, sampling, dialect, context.limits)
            with calls.waiting(ENGINE_PLACE):
                has_room = await view.begin(prompt)
            while True:
                with policy_losses(environment):
                    while environment.finish_reason is None:
                        if has_room and given:
                            action = view.repeat(given.popleft())
                        else:
                            with calls.waiting(ENGINE_ACTION):
                                action = await view.act() if has_room else None
                        if action is None:
                            environment.cut_off(FinishReason.MAX_TOKENS)
                        else:
                            step = await run(environment.step, action)
                            transcript.add_reward(step.reward)
                            has_room = not step.messages or await view.observe(step.messages)
                reward = await score(environment, run)
                is_right = reward.get("outcome", 0.0) > 0
                if retry is None or transcript.num_attempts >= retry.attempts or is_right:
                    break
                if not await view.reflect(retry.reflection_tokens):
                    break
                transcript.begin_attempt(environment.tool_results)
                environment = await run(context.environments, task)
                # the same prompt: an environment is a function of its task
                await run(environment.reset, task)
                given.clear()
                has_room = True
            reason = environment.finish_reason
            assert reason is not None, "an episode that is scored has ended"
            return record(reason, reward)
        return record(lost.reason, {})
    finally:
        release(environment)
        if view is not None:
            view.close()

"""Players of a suite's tasks: a policy in its engine, or a model behind an endpoint."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from espalier.completions import ChatEndpoint, EndpointFault, ToolNames, sent_message
from espalier.config import EvaluatedEndpointConfig
from espalier.environments import Environment
from espalier.environments.losses import (
    Attempts,
    LostCallError,
    environment_losses,
    policy_losses,
    release,
    score,
)
from espalier.evaluation.attempts import Attempt, AttemptFile, AttemptKey
from espalier.evaluation.policies import LossLimit
from espalier.evaluation.suites import NamedSuite
from espalier.records import DataError, Message, Task
from espalier.records.message import JsonObject
from espalier.records.trajectory import FinishReason, RewardBreakdown, Trajectory
from espalier.rollout.episode import ToolRunner
from espalier.rollout.roller import Roller

Start = tuple[Task, int]
"""A task, and the number of the attempt at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A finished attempt, before it is judged by official scores."""

    trajectory: Trajectory
    prompt_tokens: int
    completion_tokens: int
    cost: float = 0.0
    seconds: float = 0.0
    failure: str = ""
    """Kind of failure, if more precise than the finish reason."""
    because: str = ""
    """Cause of a loss, in words."""


Finished = Callable[[Task, int, Played], None]


class Player(Protocol):
    """Plays attempts at the tasks of one suite."""

    def play(self, starts: Sequence[Start], done: Finished) -> None:
        """Play them concurrently; call `done` as each ends, which may raise to stop all.

        Raises:
            EngineError: the model cannot be asked at all.
        """
        ...


async def _all(plays: Iterable[Coroutine[object, object, None]]) -> None:
    """Await all; the first error cancels the others."""
    playing = [asyncio.ensure_future(play) for play in plays]
    try:
        await asyncio.gather(*playing)
    finally:
        for one in playing:
            one.cancel()
        await asyncio.gather(*playing, return_exceptions=True)


class PolicyPlayer:
    """Plays a model directory in the engine that the profile names."""

    def __init__(self, policy_dir: Path, suite: NamedSuite) -> None:
        """Load the policy.

        Raises:
            PolicyError: the directory cannot be loaded, or its tokenizer has no chat template.
        """
        self._suite = suite
        self._roller = Roller.open(policy_dir, suite.environments, suite.profile)

    def play(self, starts: Sequence[Start], done: Finished) -> None:
        """Play the episodes and hand on each one as it ends."""
        asyncio.run(self._play(starts, done))

    async def _play(self, starts: Sequence[Start], done: Finished) -> None:
        temperature, seed = self._suite.config.temperature, self._suite.profile.seed
        async with self._roller.serving() as context:

            async def play(task: Task, attempt: int) -> None:
                name = f"{seed}:{task.task_id}:{attempt}"
                trajectory = await self._roller.roll_out_one(
                    (task, ()), context, temperature=temperature, name=name
                )
                sampled = sum(trajectory.action_mask)
                read = len(trajectory.token_ids) - sampled
                done(
                    task,
                    attempt,
                    Played(
                        trajectory=trajectory, prompt_tokens=read, completion_tokens=sampled
                    ),
                )  # fmt: skip

            await _all(play(*start) for start in starts)


class EndpointPlayer:
    """Plays a model behind an OpenAI-compatible server, with native tool calls.

    The suite limits turns and calls, the endpoint's `max_tokens` the length of a message, and the
    server the length of a conversation.
    """

    def __init__(self, config: EvaluatedEndpointConfig, key: str, suite: NamedSuite) -> None:
        self._config = config
        self._key = key
        self._suite = suite

    def play(self, starts: Sequence[Start], done: Finished) -> None:
        """Play the episodes and hand on each one as it ends."""
        asyncio.run(self._play(starts, done))

    async def _play(self, starts: Sequence[Start], done: Finished) -> None:
        config, rollout = self._config, self._suite.profile.rollout
        slots = asyncio.Semaphore(config.concurrency)
        # in threads: on the event loop a slow call would have no deadline
        workers = max(rollout.tool_workers, config.concurrency)
        tools = ToolRunner(workers=workers, timeout_s=rollout.tool_timeout_s)
        async with ChatEndpoint(config, self._key) as chat:

            async def play(task: Task, attempt: int) -> None:
                attempts = Attempts(max_replays=rollout.max_replays)
                async with slots:
                    while True:
                        again = attempts.number
                        name = f"{attempt}:replay{again - 1}" if again else attempt
                        episode = _ChatEpisode(chat, tools, self._suite, task, name)
                        played = await episode.played()
                        reason = played.trajectory.finish_reason
                        # a request that got no answer was repeated already
                        is_over = not played.trajectory.is_lost or reason is FinishReason.LOST_CALL
                        if is_over or not attempts.again_after(reason):
                            break
                price = (
                    played.prompt_tokens * config.prompt_price
                    + played.completion_tokens * config.completion_price
                )
                done(task, attempt, replace(played, cost=price / 1e6))

            await _all(play(*start) for start in starts)


class _ChatEpisode:
    """One attempt, played by chat completions."""

    def __init__(
        self,
        chat: ChatEndpoint,
        tools: ToolRunner,
        suite: NamedSuite,
        task: Task,
        name: object,
    ) -> None:
        self._chat = chat
        self._run = tools.run
        self._suite = suite
        self._task = task
        self._dice = random.Random(f"{suite.profile.seed}:{task.task_id}:{name}")
        self._environment: Environment | None = None
        self._messages: list[Message] = []
        self._prompt_tokens = self._completion_tokens = 0
        self._failure = ""

    async def played(self) -> Played:
        """Play to the end; a lost environment or server ends only this attempt.

        Raises:
            EngineError: the server refuses every request, or the cost limit is reached.
        """
        began_s = time.perf_counter()
        try:
            with environment_losses() as lost:
                reason, reward = await self._judged()
                return self._ended(began_s, reason, reward)
            because = lost.because or "a call of the environment took too long"
            return self._ended(began_s, lost.reason, {}, because)
        finally:
            release(self._environment)

    def _ended(
        self, began_s: float, reason: FinishReason, reward: RewardBreakdown, because: str = ""
    ) -> Played:
        environment = self._environment
        return Played(
            trajectory=Trajectory(
                task_id=self._task.task_id,
                group_id=self._task.task_id,
                messages=tuple(self._messages),
                tool_results=tuple(environment.tool_results) if environment else (),
                reward=reward,
                answer=environment.answer if environment else None,
                finish_reason=reason,
                policy_version=0,
            ),
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            seconds=round(time.perf_counter() - began_s, 3),
            failure=self._failure,
            because=because,
        )

    async def _judged(self) -> tuple[FinishReason, RewardBreakdown]:
        try:
            environment = await self._run(self._suite.environments, self._task)
            self._environment = environment
            with policy_losses(environment):
                await self._acted(environment)
            reward = await score(environment, self._run)
        except EndpointFault as fault:
            self._failure = fault.kind
            raise LostCallError(str(fault)) from fault
        assert environment.finish_reason is not None, "an episode that is scored has ended"
        return environment.finish_reason, reward

    async def _acted(self, environment: Environment) -> None:
        opening = await self._run(environment.reset, self._task)
        names = ToolNames(opening.tools)
        self._messages += opening.messages
        sent = _opened(opening.messages, self._suite.environments.instructions)
        while environment.finish_reason is None:
            reply = await self._chat.reply(
                sent,
                opening.tools,
                names,
                temperature=self._suite.config.temperature,
                seed=self._dice.getrandbits(31),
            )
            self._prompt_tokens += reply.prompt_tokens
            self._completion_tokens += reply.completion_tokens
            self._failure = reply.fault
            self._messages.append(reply.action.message())
            if reply.fault == "truncated":
                environment.cut_off(FinishReason.MAX_TOKENS)
                return
            step = await self._run(environment.step, reply.action)
            self._messages += step.messages
            sent += [reply.message, *map(sent_message, step.messages)]


def _opened(messages: Sequence[Message], instructions: str) -> list[JsonObject]:
    """Messages of the first request; the family's instructions open the system message."""
    sent = [sent_message(message) for message in messages]
    if not instructions:
        return sent
    if messages and messages[0].role == "system":
        sent[0]["content"] = f"{instructions.strip()}\n\n{messages[0].content}"
        return sent
    return [{"role": "system", "content": instructions.strip()}, *sent]


def judge(player: Player, suite: NamedSuite, kept: AttemptFile) -> list[Attempt]:
    """Play the attempts that `kept` does not have yet, and add each to it as it ends.

    Lost attempts are not added, so that the same command tries them again.

    Returns:
        All attempts, task by task, including lost ones.

    Raises:
        EnvironmentLostError: more attempts stayed lost than `evaluation.max_lost_share` allows.
        EngineError: the model cannot be asked at all.
        DataError: an official score is not finite.
    """
    wanted = [(task, number) for task in suite.tasks for number in range(suite.config.attempts)]
    limit = LossLimit(len(wanted), suite.profile.evaluation.max_lost_share, _LOST_REMEDY)
    lost: dict[AttemptKey, Attempt] = {}

    def done(task: Task, number: int, played: Played) -> None:
        attempt = judged(suite, task, number, played)
        if not attempt.lost:
            kept.add(attempt)
            return
        lost[attempt.key] = attempt
        limit.count(played.trajectory, played.because)

    missing = [(t, number) for t, number in wanted if (t.task_id, number) not in kept.kept]
    if missing:
        player.play(missing, done)
    found: Mapping[AttemptKey, Attempt] = {**kept.kept, **lost}
    return [found[AttemptKey(task.task_id, number)] for task, number in wanted]


_LOST_REMEDY = (
    "Fix the cause and run the same command again: finished attempts are kept, and lost ones are "
    "played again"
)


def judged(suite: NamedSuite, task: Task, number: int, played: Played) -> Attempt:
    """The attempt with its official scores; a lost one has none.

    Raises:
        DataError: a score is not finite, or the headline score is missing.
    """
    trajectory = played.trajectory
    scores: dict[str, float] = {}
    if not trajectory.is_lost:
        scores = {k: float(v) for k, v in suite.family.official_scores(task, trajectory).items()}
        headline = scores.get(suite.family.headline)
        if headline is None or any(value - value != 0 for value in scores.values()):
            raise DataError(
                f"{suite.family.name}: official_scores returned {scores} for task {task.task_id}, "
                "but every score has to be finite, and the headline score "
                f"{suite.family.headline!r} present"
            )
    solved = scores.get(suite.family.headline, 0.0) >= 1
    return Attempt(
        task_id=task.task_id,
        attempt=number,
        scores=scores,
        solved=solved,
        answer=trajectory.answer,
        finish_reason=trajectory.finish_reason.value,
        failure="" if solved else played.failure or _failure(trajectory),
        lost=trajectory.is_lost,
        tool_calls=len(trajectory.tool_results),
        failed_calls=sum(not result.succeeded for result in trajectory.tool_results),
        prompt_tokens=played.prompt_tokens,
        completion_tokens=played.completion_tokens,
        cost=played.cost,
        seconds=played.seconds,
        messages=trajectory.messages,
    )


def _failure(trajectory: Trajectory) -> str:
    if trajectory.finish_reason is FinishReason.ANSWERED:
        return "wrong_answer"
    return trajectory.finish_reason.value

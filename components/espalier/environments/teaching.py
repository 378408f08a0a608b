"""Plays a family's scripted demonstrations in the environment that policies play in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from dataclasses import replace
from typing import TypeVar

from espalier.environments.contract import (
    Environment,
    Environments,
    waited,
)
from espalier.environments.demonstrations import Rejected
from espalier.environments.losses import (
    Attempts,
    environment_losses,
    policy_losses,
    release,
    score,
)
from espalier.records import Action, Message, Task
from espalier.records.trajectory import FinishReason, Trajectory

T = TypeVar("T")


class Observed(str):
    """The observation after an action, and whether its calls succeeded."""

    succeeded: bool = True


Script = Generator[Action, Observed, None]
"""Yields the teacher's actions and is sent the observation after each."""


class GaveUp(Exception):
    """The script cannot go on; the message is the reason."""


_MAX_REPLAYS = 2
"""The default of `rollout.max_replays`, which is the limit for policies."""


class ScriptTeacher:
    """Turns scripts into trajectories, and rejects those that the environment scores as wrong."""

    def __init__(self, environments: Environments) -> None:
        self._environments = environments

    def demonstrate(
        self, task: Task, begin: Callable[[], Script], *, detour: str = ""
    ) -> Trajectory | Rejected:
        """Return the trajectory, if the environment scores it as right.

        If the environment is lost for an outside cause, the script is replayed a few times.

        Args:
            task: the task to play.
            begin: returns a fresh script, as `Family.demonstrate` does.
            detour: kind of mistake that the script makes on the way; empty for none.
        """
        attempts = Attempts(max_replays=_MAX_REPLAYS)
        while True:
            with environment_losses() as lost:
                return asyncio.run(self._judged(task, begin(), detour))
            if not attempts.again_after(lost.reason):
                return Rejected("sandbox_lost")

    async def _judged(self, task: Task, script: Script, detour: str) -> Trajectory | Rejected:
        try:
            trajectory = await play_script(self._environments, task, script)
        except GaveUp as reason:
            return Rejected(str(reason))
        if trajectory.finish_reason is FinishReason.PROGRAM_BROKE_SANDBOX:
            return Rejected("program_broke_sandbox")
        if trajectory.finish_reason is not FinishReason.ANSWERED:
            return Rejected("too_few_turns")
        if not trajectory.is_right:
            return Rejected("wrong_answer")
        return replace(trajectory, group_id=f"teacher/{task.task_id}", detour=detour)


async def play_script(environments: Environments, task: Task, script: Script) -> Trajectory:
    """Play a script in the environment that policies play in, and return its trajectory.

    Raises:
        GaveUp: the script raised it, or ended before the episode did.
        EnvironmentLostError: the environment cannot go on.
    """
    environment = environments(task)
    messages: list[Message] = []
    try:
        with policy_losses(environment):
            opening = await waited(environment.reset(task))
            messages += opening.messages
            await _play(environment, script, messages)
        reward = await score(environment, _called)
        assert environment.finish_reason is not None, "an episode that is scored has ended"
        return Trajectory(
            task_id=task.task_id,
            group_id=task.task_id,
            messages=tuple(messages),
            tool_results=tuple(environment.tool_results),
            reward=reward,
            answer=environment.answer,
            finish_reason=environment.finish_reason,
            policy_version=0,
        )
    except GaveUp:
        environment.cut_off(FinishReason.MAX_TURNS)
        raise
    finally:
        release(environment)
        script.close()


async def _called(call: Callable[[], T | Awaitable[T]]) -> T:
    return await waited(call())


async def _play(environment: Environment, script: Script, messages: list[Message]) -> None:
    try:
        action = next(script)
        while True:
            messages.append(action.message())
            step = await waited(environment.step(action))
            messages.extend(step.messages)
            if step.done:
                return

            observed = Observed("\n".join(message.content for message in step.messages))
            results = sum(message.role == "tool" for message in step.messages)
            of_step = environment.tool_results[len(environment.tool_results) - results :]
            observed.succeeded = all(result.succeeded for result in of_step)
            action = script.send(observed)
    except StopIteration:
        raise GaveUp("unanswered") from None

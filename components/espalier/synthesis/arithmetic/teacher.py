"""A teacher that solves a problem by programs, in the very environment that policies play in."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar, cast

from espalier.environments import Environment, EnvironmentLostError, Environments
from espalier.rollout.trajectory import FinishReason, Trajectory
from espalier.synthesis import plans
from espalier.synthesis.teacher import Rejected
from espalier.tasks import Message, Task
from espalier.tasks.arithmetic import VARIABLE

UNKNOWN_NAME = "unknown_name"
"""The detour: a program that prints a name which it never made, and reads the error."""
MAX_LINES_BEFORE_DETOUR = 5
"""Longer programs take no detour: an episode's limit on tokens would cut them off."""

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MathQuestion:
    """A task, and the plan and the program that solve it."""

    task: Task
    plan: str
    program: str


class ProgramTeacher:
    """Runs the program of a question and answers what it prints last."""

    def __init__(self, environments: Environments) -> None:
        self._environments = environments

    def demonstrate(self, question: MathQuestion, detour_kind: str = "") -> Trajectory | Rejected:
        """The trajectory, if the environment scores it as right."""
        return asyncio.run(self._played(question, detour_kind))

    async def _played(self, question: MathQuestion, detour_kind: str) -> Trajectory | Rejected:
        environment = await _waited(self._environments(question.task))
        episode = _Episode(question, environment, self._environments)
        try:
            return await episode.solved(detour_kind)
        except EnvironmentLostError:
            return Rejected("sandbox_lost")


class _Episode:
    def __init__(
        self, question: MathQuestion, environment: Environment, environments: Environments
    ) -> None:
        self._question = question
        self._environment = environment
        self._grammar = environments.grammar
        self._messages = list(question.task.prompt)
        self._detour = ""

    async def solved(self, detour_kind: str) -> Trajectory | Rejected:
        program = self._question.program
        if detour_kind and program.count("\n") < MAX_LINES_BEFORE_DETOUR:
            misspelt = f"{program.rpartition('print')[0]}print({VARIABLE * 2})"
            await self._run(misspelt)
            self._detour = detour_kind
        numbers = _NUMBER.findall(await self._run(program))
        if self._environment.finish_reason is not None:
            return Rejected("too_few_turns")
        if not self._environment.tool_calls[-1].succeeded or not numbers:
            self._environment.cut_off(FinishReason.MAX_TURNS)
            return Rejected("program_failed")
        answer = numbers[-1].removesuffix(".0")
        action = self._grammar.answer(plans.ready_to_answer(), rf"\boxed{{{answer}}}")
        await self._act(action)
        reward = await _waited(self._environment.score())
        if reward["outcome"] <= 0:
            return Rejected("wrong_answer")
        return self._trajectory(reward)

    async def _run(self, program: str) -> str:
        observation = await self._act(self._grammar.call(self._question.plan, program))
        if observation is not None:
            self._messages.append(Message(role="tool", content=observation))
        return observation or ""

    async def _act(self, action: str) -> str | None:
        self._messages.append(Message(role="assistant", content=action))
        step = await _waited(self._environment.step(action))
        return step.observation

    def _trajectory(self, reward: dict[str, float]) -> Trajectory:
        task_id, environment = self._question.task.task_id, self._environment
        return Trajectory(
            task_id=task_id,
            group_id=f"teacher/{task_id}",
            messages=tuple(self._messages),
            tool_calls=tuple(environment.tool_calls),
            reward=reward,
            answer=environment.answer,
            finish_reason=FinishReason.ANSWERED,
            policy_version=0,
            detour=self._detour,
        )


async def _waited(result: T | Awaitable[T]) -> T:
    """The result of an environment's call, which may have to be waited for."""
    if inspect.isawaitable(result):
        return await cast("Awaitable[T]", result)
    return cast("T", result)

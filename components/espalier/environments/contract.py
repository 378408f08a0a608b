"""The contract between the episode loop and the environments of every family."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from espalier.knowledge.views import View
from espalier.records import Action, EspalierError, Message, PolicyError, Task
from espalier.records.message import ToolSpec
from espalier.records.trajectory import FinishReason, RewardBreakdown, ToolResult


class EnvironmentLostError(EspalierError):
    """The environment crashed or its sandbox is gone: the episode cannot be scored.

    It ends one episode and not the run. An environment that talks to a sandbox or a server raises
    it for broken connections, and for nothing else: what a policy may cause (a failing command, a
    missing page) is an observation and no error.
    """


class Opening(NamedTuple):
    """Messages and tools at the start of an episode."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """Result of one action; without messages when the episode is done."""

    messages: tuple[Message, ...] = ()
    """Observations, of role tool or user."""
    finish_reason: FinishReason | None = None
    reward: float = 0.0
    """Reward of this action, in addition to the terms of `score`."""

    @property
    def done(self) -> bool:
        """Whether the episode ended with this action."""
        return self.finish_reason is not None


class Environment(Protocol):
    """One episode of one task; single use, as nothing survives a reset."""

    @property
    def tool_results(self) -> Sequence[ToolResult]:
        """Calls so far, with their results."""
        ...

    @property
    def answer(self) -> str | None:
        """The policy's final answer, once there is one."""
        ...

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the episode ended; None while it goes on."""
        ...

    def reset(self, task: Task) -> Opening | Awaitable[Opening]:
        """Begin the episode.

        Raises:
            EnvironmentLostError: the episode cannot be set up.
        """
        ...

    def step(self, action: Action) -> Step | Awaitable[Step]:
        """Play one parsed message of the policy; may be a coroutine function.

        Raises:
            EnvironmentLostError: the episode cannot go on.
        """
        ...

    def cut_off(self, reason: FinishReason) -> None:
        """End the episode from outside, as when the token budget is used up."""
        ...

    def score(self) -> RewardBreakdown | Awaitable[RewardBreakdown]:
        """The named reward terms of an ended episode; may be a coroutine function.

        Raises:
            EnvironmentLostError: the verifier's sandbox is gone.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Environments:
    """Makes a fresh environment for each episode of a family's tasks."""

    family: str
    tools: tuple[ToolSpec, ...]
    instructions: str
    make: Callable[[Task], Environment]
    derived_from: frozenset[str] = frozenset()
    """Names of the families whose tasks this one plays as well."""

    def __call__(self, task: Task) -> Environment:
        """An environment for `task`.

        Raises:
            PolicyError: the task is of another family.
        """
        if task.environment not in {self.family, *self.derived_from}:
            raise PolicyError(
                f"task {task.task_id}: no environment named {task.environment!r}; known: "
                f"{self.family}"
            )
        return self.make(task)


EnvironmentsOver = Callable[[View], Environments]
"""View of the knowledge -> its environments; without knowledge all views have the same."""

"""What the episode loop needs of an environment, whatever the family of its tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from espalier.knowledge.views import View
from espalier.records import Action, EspalierError, Message, PolicyError, Task
from espalier.records.message import ToolSpec
from espalier.records.trajectory import FinishReason, RewardBreakdown, ToolResult


class EnvironmentLostError(EspalierError):
    """An environment crashed, or what it runs in is gone: its episode cannot be scored.

    The only error of an environment that ends one episode and not the run: one that talks to a
    sandbox or a server turns broken connections into it, and nothing else. What a policy may cause
    (a command that fails, a page that is not there) is an observation and no error.
    """


class Opening(NamedTuple):
    """What an episode begins with."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """What an action led to; no messages when the episode is done."""

    messages: tuple[Message, ...] = ()
    """Of role tool or user."""
    finish_reason: FinishReason | None = None
    reward: float = 0.0
    """What the action earned by itself, beside the terms of `score`."""

    @property
    def done(self) -> bool:
        """Whether the episode ended with this action."""
        return self.finish_reason is not None


class Environment(Protocol):
    """One episode of one task; single use, as nothing survives a reset."""

    @property
    def tool_results(self) -> Sequence[ToolResult]:
        """What was called so far, and what came of it."""
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
            EnvironmentLostError: it cannot be set up.
        """
        ...

    def step(self, action: Action) -> Step | Awaitable[Step]:
        """Play one parsed message of the policy; a coroutine function where it waits.

        Raises:
            EnvironmentLostError: the episode cannot go on.
        """
        ...

    def cut_off(self, reason: FinishReason) -> None:
        """End the episode from outside: the token budget is used up."""
        ...

    def score(self) -> RewardBreakdown | Awaitable[RewardBreakdown]:
        """The named reward terms of an episode that ended; may wait, as `step` may.

        Raises:
            EnvironmentLostError: it cannot be judged.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Environments:
    """Makes a fresh environment for each episode of a family's tasks."""

    family: str
    tools: tuple[ToolSpec, ...]
    instructions: str
    make: Callable[[Task], Environment]

    def __call__(self, task: Task) -> Environment:
        """An environment for `task`.

        Raises:
            PolicyError: the task is of another family.
        """
        if task.environment != self.family:
            raise PolicyError(
                f"task {task.task_id}: no environment named {task.environment!r}; known: "
                f"{self.family}"
            )
        return self.make(task)


EnvironmentsOver = Callable[[View], Environments]
"""The environments of a view of the knowledge; those without knowledge are the same for all."""

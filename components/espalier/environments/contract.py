"""The contract between the episode loop and the environments of every family."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar, cast

from espalier.knowledge.views import View
from espalier.records import Action, EspalierError, Message, PolicyError, Task
from espalier.records.message import ToolSpec
from espalier.records.trajectory import FinishReason, RewardBreakdown, ToolResult
from espalier.sandbox.protocol import (
    SandboxError,
    SandboxLost,
    SandboxRefused,
    SandboxUnavailable,
)

T = TypeVar("T")


class EnvironmentLostError(EspalierError):
    """The environment crashed or its sandbox is gone: the episode cannot be scored.

    It ends one episode and not the run. An environment that talks to a server raises it for broken
    connections, and for nothing else: what a policy may cause (a failing command, a missing page)
    is an observation and no error. Sandboxes: see `sandbox_losses`.
    """


class ProgramBrokeSandboxError(EspalierError):
    """A program of the policy ended its own sandbox: the episode ends with a wrong answer.

    Not scoring it would let a policy lose what it cannot answer.
    """


@contextmanager
def sandbox_losses() -> Generator[None]:
    """Within the block, a sandbox error that ends one episode says whose doing it was.

    Tools and verifiers of `EpisodeRules` are called in such a block.

    Raises:
        ProgramBrokeSandboxError: a program that ran in it ended the sandbox.
        EnvironmentLostError: the sandbox was lost from outside, or none was free in time.
    """
    try:
        yield
    except (SandboxRefused, SandboxUnavailable):
        raise  # a fault of the caller; nothing that one episode could do without
    except SandboxError as error:
        if isinstance(error, SandboxLost) and error.by_program:
            raise ProgramBrokeSandboxError(f"the program ended its sandbox: {error}") from error
        raise EnvironmentLostError(f"sandbox: {error}") from error


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
            ProgramBrokeSandboxError: likewise, and the policy's own program is to blame.
        """
        ...

    def cut_off(self, reason: FinishReason) -> None:
        """End the episode from outside, as when the token budget is used up.

        With PROGRAM_BROKE_SANDBOX the episode has no answer that counts: `score` judges it as one
        that gave none, and runs nothing of the policy's.
        """
        ...

    def score(self) -> RewardBreakdown | Awaitable[RewardBreakdown]:
        """The named reward terms of an ended episode; may be a coroutine function.

        Raises:
            EnvironmentLostError: the verifier's sandbox is gone.
            ProgramBrokeSandboxError: the policy's answer ended the verifier's sandbox.
        """
        ...


class Recalled(Protocol):
    """A memory of solved tasks."""

    def recalled(self, task: Task, count: int) -> tuple[str, ...]:
        """Up to `count` texts that help with a task, the best first."""
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
    memory: Recalled | None = None
    """What `[episode.memory]` puts before the prompts; None for nothing."""

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


async def waited(result: T | Awaitable[T]) -> T:
    """The result of a call that may be a coroutine function."""
    if inspect.isawaitable(result):
        return await cast("Awaitable[T]", result)
    return cast("T", result)

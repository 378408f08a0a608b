"""The contract between the episode loop and the environments of every family."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple, ParamSpec, Protocol, TypeVar, cast

from espalier.environments.daemon_threads import in_thread
from espalier.records import Action, EspalierError, Message, PolicyError, Task
from espalier.records.message import ToolSpec
from espalier.records.trajectory import FinishReason, RewardBreakdown, ToolResult
from espalier.sandbox.call_time import call_waits
from espalier.sandbox.protocol import (
    SandboxError,
    SandboxLost,
    SandboxRefused,
    SandboxUnavailable,
)

P = ParamSpec("P")
T = TypeVar("T")

View = Literal["train", "dev", "full"]
"""What an episode may see of the knowledge: without dev and held-out, without held-out, all."""


class EnvironmentLostError(EspalierError):
    """The environment crashed or its sandbox is gone: the episode cannot be scored.

    This ends one episode, not the run. An environment that talks to a server raises it for broken
    connections only: anything that a policy may cause (a failing command, a missing page) is an
    observation, not an error. `sandbox_losses` raises it for sandboxes.
    """


class ProgramBrokeSandboxError(EspalierError):
    """A program of the policy ended its own sandbox: the episode ends with a wrong answer.

    If such an episode were not scored, a policy could escape questions that it cannot answer.
    """


class UnreadableTextError(EspalierError):
    """What the policy wrote cannot be read: the episode ends with a wrong answer.

    Not for its form, which is `Malformed`: it is too long for the model that plays its user, or
    refused by that model's server.
    """


@contextmanager
def sandbox_losses() -> Generator[None]:
    """Translate sandbox errors in the block into errors that tell who caused the loss.

    Tools and verifiers of `EpisodeRules` are called in such a block.

    Raises:
        ProgramBrokeSandboxError: a program in the sandbox ended it.
        EnvironmentLostError: the sandbox was lost for an outside cause, or none was free.
    """
    try:
        yield
    except (SandboxRefused, SandboxUnavailable):
        raise  # a fault of the caller or of the whole run, not of one episode
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
    """The result of one action; it has no messages when the episode is done."""

    messages: tuple[Message, ...] = ()
    """Observations, with role tool or user."""
    finish_reason: FinishReason | None = None
    reward: float = 0.0
    """Reward of this action, in addition to the terms of `score`."""

    @property
    def done(self) -> bool:
        """Whether the episode ended with this action."""
        return self.finish_reason is not None


class Environment(Protocol):
    """One episode of one task, for single use: nothing survives a reset."""

    @property
    def tool_results(self) -> Sequence[ToolResult]:
        """The results of all calls so far, each with its call."""
        ...

    @property
    def answer(self) -> str | None:
        """The policy's final answer; None before it is given."""
        ...

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the episode ended; None while it is running."""
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
            ProgramBrokeSandboxError: the policy's own program ended the sandbox.
        """
        ...

    def cut_off(self, reason: FinishReason) -> None:
        """End the episode from outside, for example when the token budget is used up.

        With PROGRAM_BROKE_SANDBOX or PARSE_ERROR the episode has no valid answer: `score` treats it
        as unanswered, and runs nothing of the policy's.
        """
        ...

    def score(self) -> RewardBreakdown | Awaitable[RewardBreakdown]:
        """Return the named reward terms of an ended episode; may be a coroutine function.

        Raises:
            EnvironmentLostError: the verifier's sandbox was lost.
            ProgramBrokeSandboxError: the policy's answer ended the verifier's sandbox.
        """
        ...


class Recalled(Protocol):
    """A memory of solved tasks."""

    def recalled(self, task: Task, count: int) -> tuple[str, ...]:
        """Return up to `count` texts that help with a task, the best first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Environments:
    """Creates a fresh environment for each episode of a family's tasks."""

    family: str
    tools: tuple[ToolSpec, ...]
    instructions: str
    make: Callable[[Task], Environment]
    derived_from: frozenset[str] = frozenset()
    """Names of further families whose tasks it can play."""
    memory: Recalled | None = None
    """The memory that `[episode.memory]` puts before prompts, if configured."""

    def __call__(self, task: Task) -> Environment:
        """Return a fresh environment for `task`.

        Raises:
            PolicyError: the task belongs to another family.
        """
        if task.environment not in {self.family, *self.derived_from}:
            raise PolicyError(
                f"task {task.task_id}: no environment named {task.environment!r}; known: "
                f"{self.family}"
            )
        return self.make(task)


EnvironmentsOver = Callable[[View], Environments]
"""Maps a view of the knowledge to its environments; without knowledge, all views have the same."""


async def waited(result: T | Awaitable[T]) -> T:
    """Return the result of a call, awaiting it if the function is a coroutine function."""
    if inspect.isawaitable(result):
        return await cast("Awaitable[T]", result)
    return cast("T", result)


async def in_own_time(judge: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a judge that limits its own time, from a thread.

    The time limit of the call pauses meanwhile: what an answer waits for are answers of other
    episodes, and it would be lost for their slowness.
    """
    with call_waits():
        return await in_thread(lambda: judge(*args, **kwargs))

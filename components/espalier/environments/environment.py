"""What the episode loop needs of an environment, whatever the family of its tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

from espalier.artifacts import EspalierError
from espalier.policy.grammar import Grammar
from espalier.rollout.trajectory import FinishReason, ToolCall
from espalier.tasks import Task


class EnvironmentLostError(EspalierError):
    """An environment crashed, or what it runs in is gone: its episode cannot be scored.

    The only error of an environment that ends one episode and not the run: one that talks to a
    sandbox or a server turns broken connections into it, and nothing else. What a policy may cause
    (a command that fails, a page that is not there) is an observation and no error.
    """


@dataclass(frozen=True, slots=True)
class Step:
    """What an action led to; `observation` is None when the episode is done."""

    observation: str | None
    finish_reason: FinishReason | None
    reward: float = 0.0
    """What the action earned by itself, beside the terms of `score`."""

    @property
    def done(self) -> bool:
        """Whether the episode ended with this action."""
        return self.finish_reason is not None


class Environment(Protocol):
    """One episode of one task; single use, as nothing survives a reset."""

    @property
    def tool_calls(self) -> Sequence[ToolCall]:
        """What was called so far."""
        ...

    @property
    def answer(self) -> str | None:
        """The policy's final answer, once there is one."""
        ...

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the episode ended; None while it goes on."""
        ...

    def step(self, action: str) -> Step | Awaitable[Step]:
        """Play one policy message; a coroutine function where it waits for something.

        Raises:
            EnvironmentLostError: the episode cannot go on.
        """
        ...

    def cut_off(self, reason: FinishReason) -> None:
        """End the episode from outside: the token budget is used up."""
        ...

    def score(self) -> dict[str, float] | Awaitable[dict[str, float]]:
        """The named reward terms of an episode that ended; may wait, as `step` may.

        Raises:
            EnvironmentLostError: it cannot be judged.
        """
        ...


class Environments(Protocol):
    """Makes the environment of a task; called once an episode."""

    @property
    def grammar(self) -> Grammar:
        """What the episodes are written in."""
        ...

    def __call__(self, task: Task) -> Environment | Awaitable[Environment]:
        """A fresh environment for `task`.

        Raises:
            EnvironmentLostError: it cannot be set up.
        """
        ...

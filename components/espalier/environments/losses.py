"""Why an attempt at a task ends by an error: who caused it, and so what follows.

    the policy        its own program ended the sandbox,
                      or nobody can read what it wrote     scored as a wrong answer
    the environment   it crashed, or took too long         not scored: played again, and counted
    ours              any other error                      the run stops

Those who play episodes ask here and look at no error themselves.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from espalier.environments.contract import (
    Environment,
    EnvironmentLostError,
    ProgramBrokeSandboxError,
    UnreadableTextError,
)
from espalier.records.trajectory import FinishReason, RewardBreakdown


class CallTimeoutError(Exception):
    """A call exceeded its time limit; it may still be running in its thread."""


class LostCallError(Exception):
    """A request to the model that plays got no answer, however often it was repeated."""


class LossCause(enum.Enum):
    """Who caused the error that ended an attempt."""

    POLICY = "policy"
    """The attempt is scored as a wrong answer, with its evidence."""
    ENVIRONMENT = "environment"
    """The attempt is not scored. It is played again a few times, and counted."""
    OURS = "ours"
    """The run stops with the error."""


class Loss(NamedTuple):
    """The cause of an error, and how it ends the attempt."""

    cause: LossCause
    reason: FinishReason | None = None
    """None where the run stops."""


_LOSSES: Mapping[type[Exception], Loss] = {
    ProgramBrokeSandboxError: Loss(LossCause.POLICY, FinishReason.PROGRAM_BROKE_SANDBOX),
    UnreadableTextError: Loss(LossCause.POLICY, FinishReason.PARSE_ERROR),
    CallTimeoutError: Loss(LossCause.ENVIRONMENT, FinishReason.TIMEOUT),
    EnvironmentLostError: Loss(LossCause.ENVIRONMENT, FinishReason.SANDBOX_LOST),
    LostCallError: Loss(LossCause.ENVIRONMENT, FinishReason.LOST_CALL),
}
"""Who causes which error: nothing else decides this."""
_ERRORS: tuple[type[Exception], ...] = tuple(_LOSSES)


def loss_of(error: Exception) -> Loss:
    """Return who caused an error; what is no loss of an attempt is ours."""
    return next(
        (loss for kind, loss in _LOSSES.items() if isinstance(error, kind)), Loss(LossCause.OURS)
    )


@dataclass(slots=True)
class LostAttempt:
    """The end of an attempt that the environment lost; only valid after `environment_losses`."""

    reason: FinishReason = FinishReason.SANDBOX_LOST
    because: str = ""
    """The message of the error; a call that took too long has none."""


@contextmanager
def environment_losses() -> Generator[LostAttempt]:
    """Leave the block at an error that the environment caused, and yield how it ends the attempt.

    Blocks return their result from within: what stands after the block is for lost attempts.
    """
    lost = LostAttempt()
    try:
        yield lost
    except _ERRORS as error:
        cause, reason = loss_of(error)
        if cause is not LossCause.ENVIRONMENT or reason is None:
            raise
        lost.reason, lost.because = reason, str(error)


@contextmanager
def policy_losses(environment: Environment) -> Generator[None]:
    """Leave the block at an error that the policy caused, which ends the environment's episode."""
    try:
        yield
    except _ERRORS as error:
        cause, reason = loss_of(error)
        if cause is not LossCause.POLICY or reason is None:
            raise
        environment.cut_off(reason)


async def score(environment: Environment, run: Callable[..., Awaitable[Any]]) -> RewardBreakdown:
    """Return the reward of an ended episode, by `run`, which calls the environment.

    An answer that ends the verifier's sandbox is scored as none.
    """
    with policy_losses(environment):
        return await run(environment.score)
    return await run(environment.score)


def release(environment: Environment | None) -> None:
    """End an episode that has not ended, so that the environment gives back what it holds."""
    if environment is not None and environment.finish_reason is None:
        environment.cut_off(FinishReason.SANDBOX_LOST)


class Attempts:
    """The attempts at one episode: the first, and another one after each that was lost."""

    def __init__(self, *, max_replays: int) -> None:
        self._max_replays = max_replays
        self.losses: list[FinishReason] = []
        """How each attempt so far was lost."""

    @property
    def number(self) -> int:
        """Return the number of the current attempt, from 0."""
        return len(self.losses)

    def again_after(self, loss: FinishReason) -> bool:
        """Count a lost attempt; return whether another one follows."""
        self.losses.append(loss)
        return len(self.losses) <= self._max_replays

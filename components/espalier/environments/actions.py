"""What a policy's message may be: a call of its environment's tool, an answer, or neither."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Answer:
    """A well-formed final answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """Text that is neither call nor answer; `reason` says what is wrong with it."""

    reason: str


class Call(Protocol):
    """A well-formed call of the tool."""

    @property
    def argument(self) -> str:
        """What the tool is given."""
        ...


ParsesActions = Callable[[str], Call | Answer | Malformed]
"""Reads one policy message as an environment does; never raises."""


def call_of(action: Call | Answer | Malformed) -> str | None:
    """The argument of a call; None where the action is none."""
    return None if isinstance(action, Answer | Malformed) else action.argument

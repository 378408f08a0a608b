"""What the embedded policy learns to read from: visits whose ids are drawn anew each time."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence

from espalier.environments.reading import Log
from espalier.environments.shop.made_catalogue import MADE_ASIN, drawn_asin
from espalier.records import FinalAnswer, Task, ToolCalls, action_of
from espalier.records.trajectory import Trajectory

_TEXTS = 400
"""Visits that the tokenizer's words come from."""
_ATTEMPTS = 100


class VisitReading:
    """Demonstrations of goals that no task asks for, under prompts in random order."""

    def __init__(
        self,
        draw_task: Callable[[random.Random], Task],
        demonstrate: Callable[[Task], Trajectory | None],
    ) -> None:
        """Write visits.

        Args:
            draw_task: a goal for a product of the training split.
            demonstrate: the teacher's visit; None where it found nothing.
        """
        self._draw_task = draw_task
        self._demonstrate = demonstrate

    def write(self, rng: random.Random) -> Log:
        """See `ReadingMaterial`."""
        task, trajectory = self._drawn(rng)
        behind = trajectory.messages[len(task.prompt) :]
        pieces = [
            action_of(message) if message.role == "assistant" else message.content
            for message in behind
        ]
        return Log(_shuffled(rng, task.question), tuple(_renumbered(rng, pieces)))

    def texts(self, rng: random.Random) -> Iterator[str]:
        """See `ReadingMaterial`."""
        for _ in range(_TEXTS):
            _, trajectory = self._drawn(rng)
            for message in trajectory.messages:
                yield from filter(None, (message.thought, message.content))
                for call in message.tool_calls:
                    yield " ".join((call.name, *map(str, call.arguments.values())))

    def _drawn(self, rng: random.Random) -> tuple[Task, Trajectory]:
        for _ in range(_ATTEMPTS):
            task = self._draw_task(rng)
            if (trajectory := self._demonstrate(task)) is not None:
                return task, trajectory
        raise AssertionError(f"the teacher found nothing in {_ATTEMPTS} goals of a made catalogue")


def _shuffled(rng: random.Random, instruction: str) -> str:
    """The wish's words in random order, and among them each option with its value behind it."""
    wish, *others = instruction.split(" , ")
    parts = [*wish.split(), *others]
    rng.shuffle(parts)
    return " ".join(parts)


def _renumbered(
    rng: random.Random, pieces: Sequence[ToolCalls | FinalAnswer | str]
) -> Iterator[ToolCalls | FinalAnswer | str]:
    """The pieces with other ids of products, so that ids are read, not learned."""
    drawn: dict[str, str] = {}

    def other(match: re.Match[str]) -> str:
        return drawn.setdefault(match[0], drawn_asin(rng, len(match[2])))

    for piece in pieces:
        if isinstance(piece, str):
            yield MADE_ASIN.sub(other, piece)
        elif isinstance(piece, ToolCalls):
            (call,) = piece.calls
            arguments = {
                name: MADE_ASIN.sub(other, str(value)) for name, value in call.arguments.items()
            }
            yield ToolCalls.one(call.name, arguments, piece.thought)
        else:
            yield piece

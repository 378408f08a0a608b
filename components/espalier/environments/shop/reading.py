"""What the embedded policy learns to read from: visits whose ids are drawn anew each time."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence

from espalier.environments.reading import Log
from espalier.records import FinalAnswer, Task, ToolCalls, action_of
from espalier.records.trajectory import Trajectory

_TEXTS = 400
"""Visits that the tokenizer's words come from."""
_ATTEMPTS = 100
_ID = re.compile(r"\bb\d+\b")


class VisitReading:
    """Demonstrations of goals that no task asks for, under prompts whose words are shuffled."""

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
        words = task.question.split()
        rng.shuffle(words)
        behind = trajectory.messages[len(task.prompt) :]
        pieces = [
            action_of(message) if message.role == "assistant" else message.content
            for message in behind
        ]
        return Log(" ".join(words), tuple(_renumbered(rng, pieces)))

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


def _renumbered(
    rng: random.Random, pieces: Sequence[ToolCalls | FinalAnswer | str]
) -> Iterator[ToolCalls | FinalAnswer | str]:
    """The pieces with other numbers in the products' ids, so that ids are read, not learned."""
    drawn: dict[str, str] = {}

    def other(match: re.Match[str]) -> str:
        digits = len(match[0]) - 1
        number = rng.randrange(10 ** (digits - 1), 10**digits)
        return drawn.setdefault(match[0], f"b{number}")

    for piece in pieces:
        if isinstance(piece, str):
            yield _ID.sub(other, piece)
        elif isinstance(piece, ToolCalls):
            (call,) = piece.calls
            arguments = {name: _ID.sub(other, str(value)) for name, value in call.arguments.items()}
            yield ToolCalls.one(call.name, arguments, piece.thought)
        else:
            yield piece

"""What the tiny policy learns to read from: episodes without questions."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from espalier.records import FinalAnswer, Task, ToolCalls, action_of
from espalier.records.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Log:
    """A prompt and what follows it: the policy's actions and, as text, the observations."""

    prompt: str
    pieces: tuple[ToolCalls | FinalAnswer | str, ...]


class ReadingMaterial(Protocol):
    """An endless source of logs, and the texts that a tokenizer is trained on."""

    def write(self, rng: random.Random) -> Log:
        """Return one log; depends on the state of `rng` only."""
        ...

    def texts(self, rng: random.Random) -> Iterator[str]:
        """Yield texts with the words of the family, apart from training questions."""
        ...


class DemonstrationReading:
    """Demonstrations under prompts whose words are shuffled."""

    def __init__(self, demonstrations: Sequence[Trajectory], tasks: Mapping[str, Task]) -> None:
        self._demonstrations = demonstrations
        self._tasks = tasks

    def write(self, rng: random.Random) -> Log:
        """Return a random demonstration under its shuffled prompt."""
        trajectory = rng.choice(self._demonstrations)
        task = self._tasks[trajectory.task_id]
        words = task.question.split()
        rng.shuffle(words)
        after = trajectory.messages[len(task.prompt) :]
        pieces = [
            action_of(message) if message.role == "assistant" else message.content
            for message in after
        ]
        return Log(" ".join(words), tuple(pieces))

    def texts(self, rng: random.Random) -> Iterator[str]:
        """Yield the thoughts, messages and calls of all demonstrations."""
        del rng
        for trajectory in self._demonstrations:
            for message in trajectory.messages:
                yield from filter(None, (message.thought, message.content))
                for call in message.tool_calls:
                    yield " ".join((call.name, *map(str, call.arguments.values())))

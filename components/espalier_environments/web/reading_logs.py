"""What the tiny policy learns to read from: walks over pages of training sites.

A log has the plan of some task under a prompt of its names only: what to find and what to fill in,
in random order, without the words of the question. A policy learns to copy links, fields and values
from pages and prompt, but not what a question asks for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from espalier.environments.reading import Log
from espalier.records import FinalAnswer, Task, ToolCalls

Walk = Callable[[Task], Sequence[ToolCalls | FinalAnswer | str]]
"""Maps a task to the teacher's actions, with what they show."""


class BrowsingLogs:
    """Logs of training tasks without their questions."""

    def __init__(self, tasks: Sequence[Task], walk: Walk, *, words_share: float) -> None:
        """Store the tasks that logs are made from.

        Args:
            tasks: training tasks.
            walk: plays a task.
            words_share: share of a question's other words that a prompt keeps besides the names.
        """
        self._tasks = tasks
        self._walk = walk
        self._words_share = words_share

    def write(self, rng: random.Random) -> Log:
        """Return one log; depends on the state of `rng` only."""
        task = rng.choice(self._tasks)
        words, _, page = task.question.partition("\n")
        # the names that a plan finds, and the values that it fills in
        steps = cast("list[list[str]]", task.extra["steps"])
        named = [step[-1] for step in steps if step[0] != "click"]
        rest = [
            word
            for word in words.split()
            if rng.random() < self._words_share and not any(word in name.split() for name in named)
        ]
        parts = [*named, *rest]
        rng.shuffle(parts)
        return Log(f"{' '.join(parts)}\n{page}", tuple(self._walk(task)))

    def texts(self, rng: random.Random) -> Iterator[str]:
        """Yield questions, pages, answers and arguments of calls."""
        for task in rng.sample(self._tasks, min(len(self._tasks), _READ_TASKS)):
            yield task.question
            for piece in self._walk(task):
                match piece:
                    case str():
                        yield piece
                    case FinalAnswer(text):
                        yield text
                    case ToolCalls(calls):
                        yield from (" ".join(map(str, call.arguments.values())) for call in calls)


_READ_TASKS = 400
"""Number of tasks whose pages are used to train the tokenizer."""

"""Families whose tools change something: one object for each episode holds what they change.

    class Account(Episode):
        def deposit(self, amount: int) -> str: ...      a tool: a method with typed parameters
        def score(self, answer): ...                    what the episode is worth, by its state

    class Bank(StatefulFamily[BankConfig]):
        def tools(self): return (Account.deposit,)
        def episode(self, task): return Account(task)
        def tasks(self, split, count): ...

Nothing of an episode survives it: the next one begins with an object of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from espalier.config import EnvironmentConfig
from espalier.environments.contract import EnvironmentsOver
from espalier.environments.episode import EpisodeRules, TurnResults
from espalier.environments.family import Family
from espalier.records import DataError, Task

C = TypeVar("C", bound=EnvironmentConfig)


class Episode(ABC):
    """One pass through a task: made for it, thrown away after it; its methods are the tools."""

    def __init__(self, task: Task) -> None:
        self.task = task

    @abstractmethod
    def score(self, answer: str | None) -> float:
        """Return the outcome by what the tools changed; None is no answer, as of a cut-off."""

    @property
    def is_over(self) -> bool:
        """Whether the last call ended the episode; its result is then the answer."""
        return False

    def close(self) -> None:  # noqa: B027 (most episodes hold nothing)
        """Release what the episode holds; called once, when it is over and before `score`."""


class StatefulFamily(Family[C]):
    """A family whose episodes have a state, by which they are scored."""

    @abstractmethod
    def episode(self, task: Task) -> Episode:
        """Return a fresh episode, whose methods are those that `tools` names."""

    def has_text_answer(self, task: Task) -> bool:
        """Return False: the state of an episode is scored."""
        del task
        return False

    def verify(self, task: Task, answer: str | None) -> float:
        """Refuse: an answer alone is worth nothing, episodes are scored by their state.

        Raises:
            DataError: always.
        """
        raise DataError(
            f"task {task.task_id}: the answer {answer!r} alone is not judged; {self.name} scores "
            "the state of an episode"
        )

    @contextmanager
    def environments(self, knowledge: Path) -> Generator[EnvironmentsOver]:
        """Open environments that make an episode for each task."""
        del knowledge
        environments = self.environments_by(self.built_tools, self._rules_of)
        yield lambda _view: environments

    def _rules_of(self, task: Task) -> EpisodeRules:
        episode = self.episode(task)
        tools = [tool.over(getattr(episode, tool.spec.name)) for tool in self.built_tools]

        def scored(_task: Task, answer: str | None, _turns: TurnResults) -> float:
            return float(episode.score(answer))

        return replace(
            self.rules(tools),
            verify=scored,
            is_over=lambda: episode.is_over,
            on_end=episode.close,
        )

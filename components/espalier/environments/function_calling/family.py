"""Function calling: each task offers functions of its own, and is answered by calls of them."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from espalier.environments.contract import Environments, EnvironmentsOver
from espalier.environments.episode import EpisodeRules, TurnResults
from espalier.environments.family import SimpleFamily
from espalier.environments.function_calling.answers import outcome_of, said_calls
from espalier.environments.function_calling.config import FunctionCallingConfig
from espalier.environments.function_calling.functions import offered_in
from espalier.environments.function_calling.made_up import (
    RequestReading,
    gold_action,
    request_tasks,
)
from espalier.environments.reading import ReadingMaterial
from espalier.environments.teaching import Script
from espalier.environments.tools import DescribedTool, Tool
from espalier.records import JsonObject, Split, Task, ToolSpec


class FunctionCalling(SimpleFamily[FunctionCallingConfig]):
    """See the module."""

    name = "function_calling"
    config = FunctionCallingConfig
    splits_digits = True
    answers_from_evidence = False
    ends_by_call = True

    def tools(self) -> Sequence[Tool]:
        """None that all tasks share; see `specs_of`."""
        return ()

    def specs_of(self, task: Task) -> tuple[ToolSpec, ...]:
        """The functions of the task."""
        return offered_in(task).specs

    def tasks(self, split: Split, count: int) -> Sequence[Task]:
        """Requests that need the split's made-up functions."""
        return request_tasks(self.settings, self.profile.splits, split, count, self.name)

    @contextmanager
    def environments(self, knowledge: Path) -> Generator[EnvironmentsOver]:
        """See `Family`."""
        del knowledge
        environments = self.environments_by((), self._rules_of)
        yield lambda _view: environments

    def _rules_of(self, task: Task) -> EpisodeRules:
        from dataclasses import replace

        tools = [DescribedTool(spec, _not_made) for spec in self.specs_of(task)]
        return replace(self.rules(tools), verify=self._judged, calls_are_answer=True)

    def _judged(self, task: Task, answer: str | None, turns: TurnResults) -> float:
        if answer is None:
            return 0.0
        calls = tuple(result.call for turn in turns for result in turn)
        return outcome_of(task, calls, self.settings.credit)

    def verify(self, task: Task, answer: str | None) -> float:
        if answer is None:
            return 0.0
        return outcome_of(task, said_calls(answer), self.settings.credit)

    def demonstrate(self, task: Task) -> Script:
        yield gold_action(task)

    def reading_material(self, knowledge: Path, train: Sequence[Task]) -> ReadingMaterial:
        del knowledge, train
        return RequestReading(self.settings, self.profile.splits)


def _not_made(_arguments: JsonObject) -> str:
    return ""

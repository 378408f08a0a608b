"""Function calling (BFCL, Patil et al. 2025; API-Bank, Li et al. 2023, arXiv:2304.08244; ToolRL).

Each task offers its own functions. Most tasks are answered by the calls of one message, which are
compared but not executed. A conversation plays its calls on simulated services, turn by turn.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from espalier.config import EnvironmentConfig
from espalier.environments.benchmarks import benchmark_tasks
from espalier.environments.contract import EnvironmentsOver
from espalier.environments.episode import EpisodeRules, TurnResults
from espalier.environments.family import SimpleFamily
from espalier.environments.mixins import HasBenchmarks
from espalier.environments.reading import ReadingMaterial
from espalier.environments.teaching import Script
from espalier.environments.tools import DescribedTool, Tool
from espalier.records import FinalAnswer, JsonObject, Split, Task, ToolCalls
from espalier.records.message import ToolSpec
from espalier.records.trajectory import Trajectory
from espalier_environments.function_calling.answers import (
    TOOLRL_SPAN,
    conversation_outcome,
    gold_calls,
    outcome_of,
    said_calls,
    toolrl_correctness,
)
from espalier_environments.function_calling.bfcl_rows import is_bfcl, read_bfcl
from espalier_environments.function_calling.config import FunctionCallingConfig
from espalier_environments.function_calling.conversations import (
    Conversation,
    conversation_fault,
    gold_turns,
)
from espalier_environments.function_calling.functions import offered_in
from espalier_environments.function_calling.made_conversations import CONVERSATION, DONE
from espalier_environments.function_calling.made_up import (
    NONE_FITS,
    RequestReading,
    gold_action,
    request_tasks,
)
from espalier_environments.function_calling.toolrl_rows import read_toolrl_form

INSTRUCTIONS = (
    "Call the functions that the request needs, all of them in one message where none waits for "
    "another's result, with every value that the request gives and no other. Where no function "
    "fits, or a value that one requires is missing, call none and say so.\n"
)


class FunctionCalling(SimpleFamily[FunctionCallingConfig], HasBenchmarks):
    """The family of function calling tasks."""

    name = "function_calling"
    config = FunctionCallingConfig
    instructions = INSTRUCTIONS
    splits_digits = True
    answers_from_evidence = False
    ends_by_call = True
    converses = True

    @classmethod
    def outcome_span(cls, settings: EnvironmentConfig) -> tuple[float, float]:
        """Return 0 to 1, or under ToolRL's credit its shifted correctness, below 0 if wrong."""
        assert isinstance(settings, FunctionCallingConfig)
        return TOOLRL_SPAN if settings.credit == "toolrl" else (0.0, 1.0)

    def tools(self) -> Sequence[Tool]:
        """Return no tools, as tasks share none; `specs_of` returns those of a task."""
        return ()

    def specs_of(self, task: Task) -> tuple[ToolSpec, ...]:
        """Return the functions that the task offers."""
        return offered_in(task).specs

    # ------------------------------------------------------------------------------ tasks

    def tasks(self, split: Split, count: int) -> Sequence[Task]:
        """Return requests that need the split's generated functions."""
        return request_tasks(self.settings, self.profile.splits, split, count, self.name)

    def demonstrate(self, task: Task) -> Script:
        """Yield the gold calls in one message; in a conversation, one call per message."""
        if task.verifier.kind == CONVERSATION:
            yield from self.gold_script(task)
        else:
            yield gold_action(task)

    def reading_material(self, knowledge: Path, train: Sequence[Task]) -> ReadingMaterial:
        """Return fresh requests for training functions, with their words shuffled."""
        del knowledge, train
        return RequestReading(self.settings, self.profile.splits)

    # ------------------------------------------------------------------------------ playing

    @contextmanager
    def environments(self, knowledge: Path) -> Generator[EnvironmentsOver]:
        """Open environments, which are the same for every view."""
        del knowledge
        environments = self.environments_by((), self._rules_of)
        yield lambda _view: environments

    def _rules_of(self, task: Task) -> EpisodeRules:
        if task.verifier.kind == "conversation":
            return self._conversation_rules(task)
        tools = [DescribedTool(spec, _never_played) for spec in self.specs_of(task)]
        return replace(self.rules(tools), verify=self._called, calls_are_answer=True)

    def _conversation_rules(self, task: Task) -> EpisodeRules:
        """Return the rules of one conversation, with fresh services and its user's turns."""
        conversation = Conversation(task)

        def held(of: Task, answer: str | None, _turns: TurnResults) -> float:
            # a conversation that was cut off counts as wrong, as upstream
            is_right = answer is not None and not conversation_fault(of, conversation.turns)
            return self._scaled(is_right=is_right)

        return replace(self.rules(conversation.tools), verify=held, reply=conversation.reply)

    def _called(self, task: Task, answer: str | None, turns: TurnResults) -> float:
        if answer is None:
            return self._scaled(is_right=False)
        calls = [result.call for turn in turns for result in turn]
        return outcome_of(task, calls, self.settings.credit)

    def verify(self, task: Task, answer: str | None) -> float:
        """Return the outcome of calls written as JSON, `[{"name": ..., "arguments": ...}]`.

        Any other text counts as no call. The answer to a conversation is a list of such lists, one
        for each turn of the user.
        """
        if answer is None:
            return self._scaled(is_right=False)
        if task.verifier.kind == "conversation":
            return self._scaled(is_right=conversation_outcome(task, answer) > 0)
        return outcome_of(task, said_calls(answer), self.settings.credit)

    def _scaled(self, *, is_right: bool) -> float:
        low, high = self.outcome_span(self.settings)
        return high if is_right else low

    # ------------------------------------------------------------------------------ benchmarks

    def read_benchmark(self, path: Path) -> Sequence[Task]:
        """Read BFCL v4 (a file, or its folder), API-Bank in ToolRL's form, or ToolRL's rlla."""
        read = read_bfcl if is_bfcl(path) else read_toolrl_form
        return benchmark_tasks(path, read(path, self.name))

    def official_scores(self, task: Task, trajectory: Trajectory) -> Mapping[str, float]:
        """Return the authors' `accuracy`; for ToolRL's tasks also `correctness`, -3 to 3."""
        scores = {"accuracy": float(trajectory.is_right)}
        if task.metadata.source == "toolrl_rlla":
            calls = [result.call for result in trajectory.tool_results]
            has_answer = trajectory.answer is not None
            scores["correctness"] = toolrl_correctness(task, calls) if has_answer else -3.0
        return scores

    def gold_script(self, task: Task) -> Script:
        """Yield the canonical calls; in a conversation those of each turn, one per message."""
        if task.verifier.kind != "conversation":
            calls = offered_in(task).calls(gold_calls(task))
            yield ToolCalls(calls) if calls else FinalAnswer(NONE_FITS)
            return
        offered = offered_in(task)
        for turn in gold_turns(task):
            for call in turn:
                yield ToolCalls(offered.calls([(call.name, call.arguments)]))
            yield FinalAnswer(DONE)


def _never_played(_arguments: JsonObject) -> str:
    raise AssertionError("the calls of one message are compared, not executed")

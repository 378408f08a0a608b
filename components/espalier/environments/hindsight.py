"""Retrospective relabelling: what a failed attempt did, as a demonstration of the task it solved.

Hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495) for agents with tools: a
family names the task of the training split that a wrong answer is right for, and the attempt's own
actions are played again under that task. What the environment does not score as right is not used.

    asked    the currency of the country of lyon    search "lyon country" -> france   answer france
    solved   the country of lyon                    search "lyon country" -> france   answer france
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from espalier.environments.teaching import Script, ScriptTeacher
from espalier.records import FinalAnswer, Task, ToolCall, ToolCalls
from espalier.records.trajectory import FinishReason, ToolResult, Trajectory
from espalier.synthesis.demonstrations import Rejected

SOLVED = "solved"
"""Counted among the attempts, and no failure: such an attempt is not relabelled."""
OF_ANOTHER_SPLIT = "of_another_split"
"""What was reached belongs to dev or held-out tasks."""


class Achieved(NamedTuple):
    """A task that an attempt solved, and the actions of it that solve it."""

    task: Task
    """Of the training split."""
    actions: tuple[ToolCalls | FinalAnswer, ...]
    """The attempt's own calls in their order, without those that led nowhere, and its answer."""


class Hindsight(Protocol):
    """Names the tasks that failed attempts solved; one for each family that can."""

    def achieved(self, task: Task, attempt: Trajectory) -> Achieved | Rejected:
        """The task that `attempt` solved, or why there is none.

        A function of its arguments alone. Nothing of a dev or held-out task is in what it returns.

        Args:
            task: of the training split; what the attempt was asked.
            attempt: that ended with an answer, in one context, and was judged as wrong.
        """
        ...


@dataclass(slots=True)
class Relabelled:
    """The demonstrations that failed attempts became, and why the others did not."""

    tasks: dict[str, Task] = field(default_factory=dict[str, Task])
    """Id -> task that an attempt solved."""
    demonstrations: list[Trajectory] = field(default_factory=list[Trajectory])
    """One for each of the tasks."""
    unused: Counter[str] = field(default_factory=Counter[str])
    """Reason -> attempts."""

    def drop(self, task_id: str, reason: str) -> None:
        """Leave out the demonstration of a task."""
        del self.tasks[task_id]
        self.demonstrations = [one for one in self.demonstrations if one.task_id != task_id]
        self.unused[reason] += 1


def relabelled(
    attempts: Iterable[tuple[Task, Trajectory]],
    hindsight: Hindsight,
    teacher: ScriptTeacher,
    demonstrated: Set[str],
) -> Relabelled:
    """Relabel attempts in their order.

    Args:
        attempts: each with the task that was asked.
        hindsight: of the family.
        teacher: plays actions in the environments of training.
        demonstrated: ids of tasks that have a demonstration.
    """
    found = Relabelled()
    for task, attempt in attempts:
        reason = _add(found, task, attempt, hindsight, teacher, demonstrated)
        if reason is not None:
            found.unused[reason] += 1
    return found


def _add(
    found: Relabelled,
    task: Task,
    attempt: Trajectory,
    hindsight: Hindsight,
    teacher: ScriptTeacher,
    demonstrated: Set[str],
) -> str | None:
    """Add the demonstration that an attempt becomes, or return why there is none."""
    if attempt.is_right:
        return SOLVED
    if attempt.finish_reason is not FinishReason.ANSWERED:
        return f"ended_by_{attempt.finish_reason}"
    if len(attempt.windows) > 1:
        return "in_several_contexts"
    achieved = hindsight.achieved(task, attempt)
    if isinstance(achieved, Rejected):
        return achieved.reason
    solved = achieved.task
    if solved.metadata.split != "train":
        return OF_ANOTHER_SPLIT
    if solved.task_id in demonstrated or solved.task_id in found.tasks:
        return "demonstrated_already"
    shown = teacher.demonstrate(solved, lambda: _played(achieved.actions))
    if isinstance(shown, Rejected):
        return f"played_again_{shown.reason}"
    found.tasks[solved.task_id] = solved
    found.demonstrations.append(replace(shown, group_id=f"hindsight/{solved.task_id}"))
    return None


def _played(actions: Iterable[ToolCalls | FinalAnswer]) -> Script:
    for action in actions:  # noqa: UP028 (a tuple takes no observation, as `yield from` would send)
        yield action


class MadeCall(NamedTuple):
    """A call of an attempt, with what came of it and what was thought before."""

    call: ToolCall
    result: ToolResult
    thought: str | None

    @property
    def action(self) -> ToolCalls:
        """The call in a message of its own."""
        return ToolCalls((self.call.model_copy(update={"call_id": ""}),), self.thought)


def made_calls(attempt: Trajectory) -> Iterator[MadeCall]:
    """The calls of an attempt with their results, in order; those that were not made are left out.

    A thought stands with the first call of its message.
    """
    results = iter(attempt.tool_results)
    for message in attempt.messages:
        for place, call in enumerate(message.tool_calls):
            result = next(results, None)
            if result is None:
                return
            yield MadeCall(call, result, None if place else message.thought)

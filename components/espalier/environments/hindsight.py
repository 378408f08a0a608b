"""Hindsight relabelling: a failed trajectory becomes a demonstration of the task it solved.

Hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495) for agents with tools: a
family finds the training task for which a wrong answer is right, and the trajectory's own actions
are played again under that task. A replay that the environment does not score as right is dropped.

    asked    the currency of the country of lyon    search "lyon country" -> france   answer france
    solved   the country of lyon                    search "lyon country" -> france   answer france
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from espalier.environments.demonstrations import Rejected
from espalier.environments.teaching import Script, ScriptTeacher
from espalier.records import FinalAnswer, Task, ToolCall, ToolCalls
from espalier.records.trajectory import FinishReason, ToolResult, Trajectory

SOLVED = "solved"
"""Reason for trajectories that are not relabelled because they are right already."""
OF_ANOTHER_SPLIT = "of_another_split"
"""Reason for trajectories that solved a dev or held-out task."""


class Achieved(NamedTuple):
    """A task that a trajectory solved, and those of its actions that solve it."""

    task: Task
    """A task of the training split."""
    actions: tuple[ToolCalls | FinalAnswer, ...]
    """The trajectory's own calls in order, without those that led nowhere, and its answer."""


class Hindsight(Protocol):
    """Finds the tasks that failed trajectories solved; each supporting family has one."""

    def achieved(self, task: Task, attempt: Trajectory) -> Achieved | Rejected:
        """Return the task that `attempt` solved, or why there is none.

        The result depends on the arguments only, and contains nothing of a dev or held-out task.

        Args:
            task: the training task that the policy was given.
            attempt: a trajectory of one context that ended with an answer and was judged as wrong.
        """
        ...


@dataclass(slots=True)
class Relabelled:
    """The demonstrations made from failed trajectories, and why others were not used."""

    tasks: dict[str, Task] = field(default_factory=dict[str, Task])
    """Id -> task that a trajectory solved."""
    demonstrations: list[Trajectory] = field(default_factory=list[Trajectory])
    """One demonstration for each of the tasks."""
    unused: Counter[str] = field(default_factory=Counter[str])
    """Reason -> number of trajectories."""

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
    """Relabel trajectories in their order.

    Args:
        attempts: pairs of a task and a trajectory of it.
        hindsight: the family's finder of solved tasks.
        teacher: plays actions in the training environments.
        demonstrated: ids of tasks that already have a demonstration.
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
    """Add the demonstration made from a trajectory, or return why there is none."""
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
    for action in actions:  # noqa: UP028 (`yield from` would send observations to the tuple's iterator)
        yield action


class MadeCall(NamedTuple):
    """A call in a trajectory, with its result and the thought before it."""

    call: ToolCall
    result: ToolResult
    thought: str | None

    @property
    def action(self) -> ToolCalls:
        """The call in a message of its own."""
        return ToolCalls((self.call.model_copy(update={"call_id": ""}),), self.thought)


def made_calls(attempt: Trajectory) -> Iterator[MadeCall]:
    """Yield the executed calls of a trajectory with their results, in order.

    A thought goes with the first call of its message.
    """
    results = iter(attempt.tool_results)
    for message in attempt.messages:
        for place, call in enumerate(message.tool_calls):
            result = next(results, None)
            if result is None:
                return
            yield MadeCall(call, result, None if place else message.thought)

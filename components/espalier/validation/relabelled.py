"""Validation of tasks and demonstrations made after that stage by relabelling failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from espalier.environments import Family
from espalier.records import DataError, Task
from espalier.records.knowledge import EntitySplits
from espalier.records.trajectory import Trajectory
from espalier.validation.columns import SplitTask, task_columns, trajectory_columns
from espalier.validation.judge import ExpectationResult, judge
from espalier.validation.suites import task_suite, trajectory_suite


def refused(
    accepted: Sequence[SplitTask],
    tasks: Sequence[Task],
    demonstrations: Sequence[Trajectory],
    entities: EntitySplits,
    family: Family[Any],
) -> Mapping[str, str]:
    """Tasks to leave out: id -> the first expectation that the task or its demonstration breaks.

    The tasks are judged as rows after all accepted ones, so a question that is there already is
    refused, and so is a question or an entity of another split.

    Args:
        accepted: accepted tasks of every split.
        tasks: new tasks of the training split; one that is among `accepted` is not judged again.
        demonstrations: demonstrations of `tasks`.
        entities: entities whose names must not be shared between splits.
        family: family of the tasks.

    Raises:
        DataError: an expectation about a whole table fails.
    """
    config = family.profile.validation
    known = {task.task_id for _, task in accepted}
    new = [task for task in tasks if task.task_id not in known]
    reasons: dict[str, str] = {}
    if new:
        rows = [*accepted, *(SplitTask("train", task) for task in new)]
        findings = judge(task_columns(rows, entities, family), task_suite(config))
        _add(reasons, findings, [task.task_id for _, task in rows])
    if demonstrations:
        by_id = {task.task_id: task for task in tasks}
        frame = trajectory_columns(demonstrations, by_id, family)
        findings = judge(frame, trajectory_suite(config))
        _add(reasons, findings, [one.task_id for one in demonstrations])
    return {task.task_id: reasons[task.task_id] for task in tasks if task.task_id in reasons}


def _add(
    reasons: dict[str, str], findings: Sequence[ExpectationResult], row_ids: Sequence[str]
) -> None:
    for finding in findings:
        if not finding.success and not finding.rows:
            raise DataError(f"hindsight: {finding.expectation.name} fails: {finding.problem}")
        for row in finding.rows:
            reasons.setdefault(row_ids[row], finding.expectation.name)

"""Validation of the tasks and trajectories to train and evaluate on.

In: the knowledge artifact, with the split of each entity, and the synthetic one. Out: the rows that
every expectation accepts, with `validation.json` and `validation.html`. If a critical expectation
fails, only the report is published, in `validation_failed/` beside the artifact.
"""

from espalier.validation.columns import (
    EntitySplits,
    HiddenNames,
    SplitTask,
    task_columns,
    text_columns,
    trajectory_columns,
)
from espalier.validation.judge import ExpectationResult, judge
from espalier.validation.suites import (
    TASK_SCHEMA,
    TEXT_SCHEMA,
    TRAJECTORY_SCHEMA,
    Expectation,
    ExpectationRule,
    task_suite,
    text_suite,
    trajectory_suite,
)

__all__ = [
    "TASK_SCHEMA",
    "TEXT_SCHEMA",
    "TRAJECTORY_SCHEMA",
    "EntitySplits",
    "Expectation",
    "ExpectationResult",
    "ExpectationRule",
    "HiddenNames",
    "SplitTask",
    "judge",
    "task_columns",
    "task_suite",
    "text_columns",
    "text_suite",
    "trajectory_columns",
    "trajectory_suite",
]

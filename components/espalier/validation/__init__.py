"""Validation: which tasks and trajectories may be trained and judged on.

In: the knowledge artifact (which entity belongs to which split) and the synthetic one. Out: the
rows that every expectation accepts, with `validation.json` and `validation.html`. A failing
critical expectation publishes nothing but the report, beside the artifact, in
`validation_failed/`.
"""

from espalier.validation.expectations import Expectation, Rule
from espalier.validation.judge import Finding, judge
from espalier.validation.suites import (
    TASK_SCHEMA,
    TEXT_SCHEMA,
    TRAJECTORY_SCHEMA,
    task_suite,
    text_suite,
    trajectory_suite,
)
from espalier.validation.task_columns import EntitySplits, SplitTask, task_columns
from espalier.validation.text_columns import HiddenNames, text_columns
from espalier.validation.trajectory_columns import trajectory_columns

__all__ = [
    "TASK_SCHEMA",
    "TEXT_SCHEMA",
    "TRAJECTORY_SCHEMA",
    "EntitySplits",
    "Expectation",
    "Finding",
    "HiddenNames",
    "Rule",
    "SplitTask",
    "judge",
    "task_columns",
    "task_suite",
    "text_columns",
    "text_suite",
    "trajectory_columns",
    "trajectory_suite",
]

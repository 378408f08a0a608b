"""Evaluation: every policy answers the same held-out questions; figures come with intervals.

In: knowledge, accepted tasks, and the untrained, warm-started and trained policy. Out:
`results.json` (figures), `questions.parquet` (one row per question and policy), `suite.json` (the
questions and settings, under one digest), `trajectories.parquet` (a sample of the trained
policy's).

A single policy, such as the registry's champion, is evaluated by
`espalier.evaluation.policies.evaluate_policy`; that module imports torch, this one does not.
"""

from espalier.evaluation.estimates import (
    Interval,
    mean_interval,
    paired_difference,
    pass_at_k,
    pass_hat_k,
)
from espalier.evaluation.questions import QuestionRow, questions_table
from espalier.evaluation.results import compare_answers, gain, results_table, summarize
from espalier.evaluation.suite import Suite, make_suite

__all__ = [
    "Interval",
    "QuestionRow",
    "Suite",
    "compare_answers",
    "gain",
    "make_suite",
    "mean_interval",
    "paired_difference",
    "pass_at_k",
    "pass_hat_k",
    "questions_table",
    "results_table",
    "summarize",
]

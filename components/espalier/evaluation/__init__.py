"""Evaluation: the same held-out questions for every policy, with intervals.

In: knowledge, accepted tasks, and the untrained, warm-started and trained policy. Out:
`results.json` (figures), `questions.parquet` (one row a question and policy), `suite.json` (what
was asked, under one digest), `trajectories.parquet` (some of the trained policy's episodes).

A single policy, such as the registry's champion, is judged by
`espalier.evaluation.policies.evaluate_policy`; that module imports torch, this one does not.
"""

from espalier.evaluation.intervals import Interval, mean_interval, paired_difference
from espalier.evaluation.pass_at_k import pass_at_k
from espalier.evaluation.pass_hat_k import pass_hat_k
from espalier.evaluation.questions import QuestionRow, questions_table
from espalier.evaluation.results_table import results_table
from espalier.evaluation.suite import Suite, make_suite
from espalier.evaluation.summary import compare_answers, gain, summarize

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

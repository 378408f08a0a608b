"""Figures of a suite from its attempts: official scores, pass@k, pass^k, cost, failures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from espalier.config import EvaluationConfig
from espalier.evaluation.attempts import Attempt
from espalier.evaluation.contamination import Contamination
from espalier.evaluation.estimates import (
    Interval,
    mean_interval,
    paired_difference,
    pass_at_k,
    pass_hat_k,
)
from espalier.evaluation.suites import NamedSuite
from espalier.records import ArtifactError

_DIGITS = 6
_USUAL_K = (1, 2, 4, 8)
"""Values of k for pass@k and pass^k, besides the number of attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """One model's attempts at one task."""

    suite: str
    policy: str
    """A policy of the run, or the name of a model."""
    task_id: str
    groups: Mapping[str, str]
    attempts: int
    solved: int
    """Attempts whose headline score is 1."""
    score: float
    """Mean headline score of the attempts; a lost one counts as 0."""
    lost: int
    contaminated: str
    """Kind of overlap with the model's training data (`Contamination.tasks`); empty if none."""


def task_rows(
    suite: NamedSuite, policy: str, attempts: Sequence[Attempt], found: Contamination
) -> list[TaskRow]:
    """One row for each task, in the order of the suite."""
    by_task: dict[str, list[Attempt]] = {task.task_id: [] for task in suite.tasks}
    for attempt in attempts:
        by_task[attempt.task_id].append(attempt)
    headline = suite.family.headline
    return [
        TaskRow(
            suite=suite.name,
            policy=policy,
            task_id=task.task_id,
            groups=dict(suite.family.report_groups(task)),
            attempts=len(own := by_task[task.task_id]),
            solved=sum(one.solved for one in own),
            score=sum(one.scores.get(headline, 0.0) for one in own) / len(own),
            lost=sum(one.lost for one in own),
            contaminated=found.tasks.get(task.task_id, ""),
        )
        for task in suite.tasks
    ]


def counted_rows(rows: Sequence[TaskRow], config: EvaluationConfig) -> list[TaskRow]:
    """Rows that enter the figures: contaminated ones only if the profile counts them."""
    if config.contamination.contaminated == "count":
        return list(rows)
    return [row for row in rows if not row.contaminated]


def suite_figures(
    suite: NamedSuite,
    rows: Sequence[TaskRow],
    attempts: Sequence[Attempt],
    config: EvaluationConfig,
    seed: int,
) -> dict[str, Any]:
    """One model's figures on a suite.

    Args:
        suite: the suite.
        rows: one row for each of its tasks.
        attempts: all attempts at them.
        config: settings of intervals, and whether contaminated tasks count.
        seed: seed of the resampling.

    Returns:
        `headline` (name, mean, ci95, n), `scores` (mean of each official score), `pass_at_K`,
        `pass_hat_K`, `n`, `attempts`, `excluded`, `lost`, `finish_reasons`, `failures`,
        `tool_calls` and `failed_calls` (means), `tokens`, `cost`, `by_<grouping>`. If every task is
        excluded as contaminated, only the counts, tokens and cost.
    """
    kept = counted_rows(rows, config)
    ids = {row.task_id for row in kept}
    played = [attempt for attempt in attempts if attempt.task_id in ids]
    figures: dict[str, Any] = {
        "n": len(kept),
        "attempts": len(played),
        "excluded": len(rows) - len(kept),
        "lost": sum(attempt.lost for attempt in played),
        **_spent(attempts),
    }
    if not kept:
        return figures
    mean = _interval([row.score for row in kept], config, seed)
    names = sorted({name for attempt in played for name in attempt.scores})
    most = max(row.attempts for row in kept)
    ks = [k for k in sorted({*_USUAL_K, most}) if k <= most]
    return {
        "headline": {
            "name": suite.family.headline,
            "mean": _rounded(mean.mean),
            "ci95": [_rounded(mean.low), _rounded(mean.high)],
        },
        "scores": {name: _mean(one.scores.get(name, 0.0) for one in played) for name in names},
        **{f"pass_at_{k}": _mean_rate(kept, pass_at_k, k) for k in ks},
        **{f"pass_hat_{k}": _mean_rate(kept, pass_hat_k, k) for k in ks if k > 1},
        **figures,
        "finish_reasons": _counted(one.finish_reason for one in played),
        "failures": _counted(one.failure for one in played if one.failure),
        "tool_calls": _mean(one.tool_calls for one in played),
        "failed_calls": _mean(one.failed_calls for one in played),
        **{
            f"by_{name}": _grouped(kept, name)
            for name in dict.fromkeys(name for row in kept for name in row.groups)
        },
    }


def _spent(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Tokens, cost and time of all attempts; excluded ones count too, since they were paid for."""
    seconds = [attempt.seconds for attempt in attempts if attempt.seconds]
    return {
        "tokens": {
            "prompt": sum(attempt.prompt_tokens for attempt in attempts),
            "completion": sum(attempt.completion_tokens for attempt in attempts),
        },
        "cost": _rounded(sum(attempt.cost for attempt in attempts)),
        "seconds_per_attempt": _rounded(median(seconds)) if seconds else None,
    }


def paired_scores(
    one: Sequence[TaskRow], other: Sequence[TaskRow], config: EvaluationConfig, seed: int
) -> dict[str, Any]:
    """Headline score of `one` minus that of `other`, paired by task.

    Tasks that are contaminated for either are left out, unless the profile counts them.

    Returns:
        `mean`, `ci95`, `n`, `excluded`; only the last two if no task is left.

    Raises:
        ValueError: `one` and `other` are not about the same tasks.
    """
    others = {row.task_id: row for row in other}
    if others.keys() != {row.task_id for row in one}:
        raise ValueError("a paired difference needs the same tasks")
    kept = {row.task_id for row in counted_rows(one, config)}
    kept &= {row.task_id for row in counted_rows(other, config)}
    scores = [(row.score, others[row.task_id].score) for row in one if row.task_id in kept]
    counts = {"n": len(scores), "excluded": len(one) - len(scores)}
    if not scores:
        return counts
    found = paired_difference(
        [a for a, _ in scores],
        [b for _, b in scores],
        resamples=config.bootstrap_resamples,
        confidence=config.confidence,
        seed=seed,
    )
    return {
        "mean": _rounded(found.mean),
        "ci95": [_rounded(found.low), _rounded(found.high)],
        **counts,
    }


def _grouped(rows: Sequence[TaskRow], name: str) -> dict[str, Any]:
    groups: dict[str, list[float]] = {}
    for row in rows:
        groups.setdefault(row.groups.get(name, ""), []).append(row.score)
    return {
        group: {"mean": _mean(scores), "n": len(scores)} for group, scores in sorted(groups.items())
    }


def _mean_rate(
    rows: Sequence[TaskRow], estimate: Callable[[int, int, int], float], k: int
) -> float:
    return _mean(estimate(row.attempts, row.solved, k) for row in rows)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return _rounded(sum(listed) / len(listed)) if listed else 0.0


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))


def _interval(values: Sequence[float], config: EvaluationConfig, seed: int) -> Interval:
    return mean_interval(
        values, resamples=config.bootstrap_resamples, confidence=config.confidence, seed=seed
    )


def _rounded(value: float) -> float:
    return round(value, _DIGITS)


_SCHEMA = pa.schema(
    [
        ("suite", pa.string()),
        ("policy", pa.string()),
        ("task_id", pa.string()),
        ("groups", pa.string()),
        ("attempts", pa.int64()),
        ("solved", pa.int64()),
        ("score", pa.float64()),
        ("lost", pa.int64()),
        ("contaminated", pa.string()),
    ]
)


def rows_table(rows: Sequence[TaskRow]) -> pa.Table:
    """Table with the fields of `TaskRow` as columns; groups are JSON, as a task may have none."""
    table = [{**asdict(row), "groups": json.dumps(dict(row.groups))} for row in rows]
    return pa.Table.from_pylist(table, schema=_SCHEMA)


def write_rows(path: Path, rows: Sequence[TaskRow]) -> int:
    """Write rows of any suites and models, and return their number."""
    pq.write_table(rows_table(rows), path)
    return len(rows)


def read_suite_rows(path: Path) -> list[TaskRow]:
    """Read a file that `write_rows` wrote.

    Raises:
        ArtifactError: the file is missing or truncated, or lacks a column.
    """
    try:
        rows: list[dict[str, Any]] = pq.read_table(path, schema=_SCHEMA).to_pylist()
        return [TaskRow(**{**row, "groups": json.loads(row["groups"])}) for row in rows]
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ArtifactError(
            f"{path}: not a readable table of suites ({error}). Delete the artifact and run "
            "evaluate again."
        ) from error

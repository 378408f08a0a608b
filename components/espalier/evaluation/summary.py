"""From question rows to the figures of results.json; every rate is 0-1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from espalier.config import EvaluationConfig
from espalier.evaluation.intervals import Interval, mean_interval, paired_difference
from espalier.evaluation.pass_at_k import pass_at_k
from espalier.evaluation.pass_hat_k import pass_hat_k
from espalier.evaluation.questions import QuestionRow

_USUAL_K = (1, 4)
"""k of pass@k and pass^k, besides the number of samples taken; pass^1 is pass@1."""
_DIGITS = 6


def summarize(rows: Sequence[QuestionRow], config: EvaluationConfig, seed: int) -> dict[str, Any]:
    """One policy's figures: overall, by each of the family's groupings, and why episodes ended.

    Returns:
        `em`, `f1`, `n`, `ci95` (of em), `f1_ci95`, `pass_at_K` and `pass_hat_K` for each K of 1, 4
        and the number of samples that is not above that number, `tool_calls` (mean),
        `by_<grouping>` of each grouping, `finish_reasons`. The intervals are at
        `config.confidence`, 0.95 unless the profile says otherwise.

    Raises:
        ValueError: no rows.
    """
    overall = _exact_match(rows, config, seed)
    f1 = _interval([row.f1 for row in rows], config, seed)
    samples = max(row.samples for row in rows)
    ks = [k for k in sorted({*_USUAL_K, samples}) if 1 <= k <= samples]
    return {
        **overall,
        "f1": _rounded(f1.mean),
        "f1_ci95": _ends(f1),
        **{f"pass_at_{k}": _mean_over_sampled(rows, pass_at_k, k) for k in ks},
        **{f"pass_hat_{k}": _mean_over_sampled(rows, pass_hat_k, k) for k in ks if k > 1},
        "tool_calls": _rounded(sum(row.tool_calls for row in rows) / len(rows)),
        **{
            f"by_{name}": _grouped(
                rows, lambda row, name=name: row.groups.get(name, ""), config, seed
            )
            for name in dict.fromkeys(name for row in rows for name in row.groups)
        },
        "finish_reasons": dict(sorted(Counter(row.finish_reason for row in rows).items())),
    }


def compare_answers(
    after: Mapping[str, bool], before: Mapping[str, bool], config: EvaluationConfig, seed: int
) -> Interval:
    """EM of `after` minus that of `before`, paired by question, as every report of it shows it.

    The stage that writes results.json and the promotion gate both ask here: the interval depends
    on the order of the questions in the last digits, and is the same only where the order is.

    Args:
        after: task_id -> whether the answer is right, in the order of the suite.
        before: the same questions, in any order.
        config: resamples and confidence.
        seed: of the draw.

    Returns:
        Mean and ends at six digits, as results.json keeps them.

    Raises:
        ValueError: the two did not answer the same questions.
    """
    if after.keys() != before.keys():
        raise ValueError("a paired difference needs the same questions")
    difference = paired_difference(
        list(after.values()),
        [before[task_id] for task_id in after],
        resamples=config.bootstrap_resamples,
        confidence=config.confidence,
        seed=seed,
    )
    return Interval(*map(_rounded, difference))


def gain(
    after: Sequence[QuestionRow], before: Sequence[QuestionRow], config: EvaluationConfig, seed: int
) -> dict[str, Any]:
    """`compare_answers` of two policies' rows, as results.json holds it: `em` and `ci95`.

    Raises:
        ValueError: the two did not answer the same questions.
    """
    difference = compare_answers(_answers(after), _answers(before), config, seed)
    return {"em": difference.mean, "ci95": [difference.low, difference.high]}


def _answers(rows: Sequence[QuestionRow]) -> dict[str, bool]:
    return {row.task_id: row.em for row in rows}


def _exact_match(
    rows: Sequence[QuestionRow], config: EvaluationConfig, seed: int
) -> dict[str, Any]:
    em = _interval([row.em for row in rows], config, seed)
    return {"em": _rounded(em.mean), "n": len(rows), "ci95": _ends(em)}


def _grouped(
    rows: Sequence[QuestionRow],
    key: Callable[[QuestionRow], str],
    config: EvaluationConfig,
    seed: int,
) -> dict[str, Any]:
    names = sorted({key(row) for row in rows})
    groups = {name: [row for row in rows if key(row) == name] for name in names}
    return {name: _exact_match(group, config, seed) for name, group in groups.items()}


def _mean_over_sampled(
    rows: Sequence[QuestionRow], estimate: Callable[[int, int, int], float], k: int
) -> float:
    sampled = [row for row in rows if row.samples >= k]
    estimates = (estimate(row.samples, row.samples_right, k) for row in sampled)
    return _rounded(sum(estimates) / len(sampled))


def _interval(values: Sequence[float], config: EvaluationConfig, seed: int) -> Interval:
    return mean_interval(
        values, resamples=config.bootstrap_resamples, confidence=config.confidence, seed=seed
    )


def _ends(interval: Interval) -> list[float]:
    return [_rounded(interval.low), _rounded(interval.high)]


def _rounded(value: float) -> float:
    return round(value, _DIGITS)

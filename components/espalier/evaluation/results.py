"""From question rows to the figures of results.json, and to the before/after table; rates are 0-1.

The table is plain cells, for a terminal or a README.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from espalier.config import EvaluationConfig
from espalier.evaluation.estimates import (
    Interval,
    mean_interval,
    paired_difference,
    pass_at_k,
    pass_hat_k,
)
from espalier.evaluation.questions import QuestionRow
from espalier.records import group_label, group_of, shown_group

_USUAL_K = (1, 4)
"""k of pass@k and pass^k, besides the number of samples taken; pass^1 is pass@1."""
_DIGITS = 6
LOSSES = {"lost_episodes": "lost", "broke_sandbox_episodes": "broke sandbox"}
"""Counts of episodes that are wrong without a verdict on their answer -> title of their column."""
KNOWLEDGE = {"closed_book_em": "closed-book %", "grounded": "grounded %"}
"""Rates that say where right answers come from -> title of their column."""


def summarize(rows: Sequence[QuestionRow], config: EvaluationConfig, seed: int) -> dict[str, Any]:
    """One policy's figures: overall, by each of the family's groupings, and finish reasons.

    Returns:
        `em`, `f1`, `n`, `ci95` (of em), `f1_ci95`, `pass_at_K` and `pass_hat_K` for each K of 1, 4
        and the number of samples that is not above that number, `tool_calls` (mean),
        `lost_episodes` (from outside, in every attempt) and `broke_sandbox_episodes` (by the
        policy's own program), both of all episodes and all wrong, `by_<grouping>` of each grouping,
        `finish_reasons`. Where answers are looked up: `closed_book_em` of the answers from memory,
        `closed_book_answered` (those that stated one) and `closed_book_n`; `grounded` of all
        `grounded_n` answers given, and `grounded_right` of the right ones. Each of these shares has
        an interval `<name>_ci95`. The intervals are at `config.confidence`, 0.95 unless the profile
        says otherwise.

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
        **{name: sum(getattr(row, name) for row in rows) for name in LOSSES},
        **_knowledge(rows, config, seed),
        **{
            f"by_{name}": _grouped(
                rows, lambda row, name=name: row.groups.get(name, ""), config, seed
            )
            for name in dict.fromkeys(name for row in rows for name in row.groups)
        },
        "finish_reasons": dict(sorted(Counter(row.finish_reason for row in rows).items())),
    }


def compare_answers(
    after: Mapping[str, float], before: Mapping[str, float], config: EvaluationConfig, seed: int
) -> Interval:
    """EM of `after` minus that of `before`, paired by question.

    Both the stage that writes results.json and the promotion gate use this function: the last
    digits of the interval depend on the order of the questions.

    Args:
        after: task_id -> whether the answer is right, or its score, in the order of the suite.
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

    `by_<grouping>` has the same of each group of questions, and their number `n`.

    Raises:
        ValueError: the two did not answer the same questions.
    """
    by_grouping: dict[str, dict[str, list[QuestionRow]]] = {}
    for row in after:
        for name, value in row.groups.items():
            by_grouping.setdefault(name, {}).setdefault(value, []).append(row)
    earlier = {row.task_id: row for row in before}
    return _difference(after, before, config, seed) | {
        f"by_{name}": {
            value: {
                **_difference(rows, [earlier[row.task_id] for row in rows], config, seed),
                "n": len(rows),
            }
            for value, rows in sorted(groups.items())
        }
        for name, groups in by_grouping.items()
    }


def _difference(
    after: Sequence[QuestionRow], before: Sequence[QuestionRow], config: EvaluationConfig, seed: int
) -> dict[str, Any]:
    difference = compare_answers(_answers(after), _answers(before), config, seed)
    return {"em": difference.mean, "ci95": [difference.low, difference.high]}


def _answers(rows: Sequence[QuestionRow]) -> dict[str, bool]:
    return {row.task_id: row.em for row in rows}


def _knowledge(rows: Sequence[QuestionRow], config: EvaluationConfig, seed: int) -> dict[str, Any]:
    """How much is known without tools, and how many answers came from them.

    What was not asked for is left out.
    """
    asked = [row for row in rows if row.closed_book_em is not None]
    looked_up = [row for row in rows if row.grounded is not None]
    shares = {
        "closed_book_em": [row.closed_book_em for row in asked],
        "closed_book_answered": [row.closed_book_answer is not None for row in asked],
        "grounded": [row.grounded for row in looked_up],
        "grounded_right": [row.grounded for row in looked_up if row.em],
    }
    found: dict[str, Any] = {}
    for name, values in shares.items():
        if values:
            share = _interval([float(bool(value)) for value in values], config, seed)
            found |= {name: _rounded(share.mean), f"{name}_ci95": _ends(share)}
    counts = {"closed_book_n": len(asked), "grounded_n": len(looked_up)}
    return found | {name: count for name, count in counts.items() if count}


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


POLICIES = ("untrained", "warm_start", "trained")


def results_table(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """One row per policy, and one for the gain of training; all rows have the same keys.

    Of the groupings only the one by difficulty is shown; the report has them all. Lost episodes
    have a column where there are any, and so have answers from memory and grounded ones.

    Args:
        results: what results.json holds.
    """
    figures = results["eval"]
    policies = [figures[policy] for policy in POLICIES]
    confidence = f"{results['bootstrap']['confidence']:.0%} interval"
    rows = []
    for policy, found in zip(POLICIES, policies, strict=True):
        row = {
            "policy": policy.replace("_", " "),
            "EM %": _percent(found["em"]),
            confidence: _percents(found["ci95"]),
        }
        row |= knowledge_columns(found, policies)
        row |= {"F1 %": _percent(found["f1"])}
        row |= {f"pass@{k} %": _percent(found.get(f"pass_at_{k}")) for k in _measured_k(policies)}
        row |= {"tool calls": f"{found['tool_calls']:.2f}"}
        rows.append(row | loss_columns(found, policies) | group_columns(found, policies))
    gain = figures["gain"]
    last = dict.fromkeys(rows[0], "")
    last["policy"] = f"trained - {gain['baseline'].replace('_', ' ')}"
    last["EM %"] = f"{100 * gain['em']:+.1f}"
    last[confidence] = " to ".join(f"{100 * end:+.1f}" for end in gain["ci95"])
    return [*rows, last]


def knowledge_columns(
    figures: Mapping[str, Any], policies: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """One policy's rates of `KNOWLEDGE`: title -> percent, for each that some policy has."""
    return {
        title: _percent(figures.get(name))
        for name, title in KNOWLEDGE.items()
        if any(policy.get(name) is not None for policy in policies)
    }


def loss_columns(
    figures: Mapping[str, Any], policies: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """One policy's lost episodes: column title -> count, for each count that some policy has."""
    return {
        title: str(figures.get(name, 0))
        for name, title in LOSSES.items()
        if any(policy.get(name) for policy in policies)
    }


def group_columns(
    figures: Mapping[str, Any], policies: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """EM of one policy by the grouping that the table shows: column title -> percent."""
    group = shown_group(policies)
    if group is None:
        return {}
    name, values = group
    found = group_of(figures, name)
    return {
        f"{group_label(name, value)} %": _percent(found.get(value, {}).get("em"))
        for value in values
    }


def _measured_k(policies: Sequence[Mapping[str, Any]]) -> list[int]:
    found = {key for policy in policies for key, rate in policy.items() if rate is not None}
    return sorted(int(key.rpartition("_")[2]) for key in found if key.startswith("pass_at_"))


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.1f}"


def _percents(ends: list[float]) -> str:
    return " to ".join(_percent(end) for end in ends)

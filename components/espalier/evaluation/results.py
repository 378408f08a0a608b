"""Figures of results.json, and the before/after table, from question rows. Rates are 0-1.

The cells of the table are plain text, for a terminal or a README.
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
from espalier.records import group_label, group_of, policy_label, shown_group

_USUAL_K = (1, 4)
"""Values of k for pass@k and pass^k, besides the number of samples; pass^1 is pass@1."""
_DIGITS = 6
LOSSES = {"lost_episodes": "lost", "broke_sandbox_episodes": "broke sandbox"}
"""Field that counts episodes which are wrong without a verdict -> title of its column."""
KNOWLEDGE = {"closed_book_em": "closed-book %", "grounded": "grounded %"}
"""Rate that tells memory from looking up -> title of its column."""


def summarize(rows: Sequence[QuestionRow], config: EvaluationConfig, seed: int) -> dict[str, Any]:
    """One policy's figures: overall, by group of questions, and by finish reason.

    Returns:
        `em`, `n`, `ci95` (of em); `f1` and `f1_ci95` over answers that are texts; `pass_at_K` and
        `pass_hat_K` for K = 1, 4 and the number of samples, up to that number, over the `sampled_n`
        questions that were sampled; `tool_calls` (mean);
        `lost_episodes` (lost to infrastructure in every attempt) and `broke_sandbox_episodes`
        (ended by the policy's own program), counts over all episodes, which are all wrong;
        `by_<grouping>` for each grouping; `finish_reasons`. If the family's tools look answers up,
        also `closed_book_em` over `closed_book_n` questions from memory, `closed_book_answered`
        (share with an answer), `grounded` over `grounded_n` answers, and `grounded_right` over the
        right ones, each with an interval `<name>_ci95`. All intervals are at `config.confidence`,
        by default 0.95.

    Raises:
        ValueError: no rows.
    """
    overall = _exact_match(rows, config, seed)
    samples = max(row.samples for row in rows)
    ks = [k for k in sorted({*_USUAL_K, samples}) if 1 <= k <= samples]
    return {
        **overall,
        **_token_f1(rows, config, seed),
        **{f"pass_at_{k}": _mean_over_sampled(rows, pass_at_k, k) for k in ks},
        **{f"pass_hat_{k}": _mean_over_sampled(rows, pass_hat_k, k) for k in ks if k > 1},
        **({"sampled_n": sum(row.samples > 0 for row in rows)} if samples else {}),
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


def figures_as_written(
    rows: Sequence[QuestionRow],
    with_lines: Sequence[QuestionRow],
    config: EvaluationConfig,
    seed: int,
) -> dict[str, Any]:
    """EM of questions over texts without added lines, and of the same questions with them.

    Args:
        rows: answers over the texts as they are written.
        with_lines: one policy's answers to all questions of the suite.
        config: resamples and confidence.
        seed: seed of the resampling.

    Returns:
        `as_written_em` and `added_lines_em`, each over `as_written_n` questions, with intervals
        `<name>_ci95`.
    """
    asked = {row.task_id for row in rows}
    figures: dict[str, Any] = {"as_written_n": len(rows)}
    same = [row for row in with_lines if row.task_id in asked]
    for name, found in (("as_written_em", rows), ("added_lines_em", same)):
        em = _exact_match(found, config, seed)
        figures |= {name: em["em"], f"{name}_ci95": em["ci95"]}
    return figures


def compare_answers(
    after: Mapping[str, float], before: Mapping[str, float], config: EvaluationConfig, seed: int
) -> Interval:
    """Mean of `after` minus `before`, paired by question, with its interval.

    The stage that writes results.json and the promotion gate share this function, because the last
    digits of the interval depend on the order of the questions.

    Args:
        after: task_id -> whether the answer is right, or its score, in the order of the suite.
        before: the same questions, in any order.
        config: resamples and confidence.
        seed: seed of the resampling.

    Returns:
        Mean and ends, rounded to six digits as in results.json.

    Raises:
        ValueError: `after` and `before` are not about the same questions.
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
    """Entry `gain` of results.json: difference in EM (`em`) between two policies, with its `ci95`.

    `by_<grouping>` has the same for each group of questions, and their number `n`.

    Raises:
        ValueError: `after` and `before` are not about the same questions.
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


def _token_f1(rows: Sequence[QuestionRow], config: EvaluationConfig, seed: int) -> dict[str, Any]:
    """F1 and its interval; left out if no answer is a text."""
    values = [row.f1 for row in rows if row.f1 is not None]
    if not values:
        return {}
    f1 = _interval(values, config, seed)
    return {"f1": _rounded(f1.mean), "f1_ci95": _ends(f1)}


def _knowledge(rows: Sequence[QuestionRow], config: EvaluationConfig, seed: int) -> dict[str, Any]:
    """Shares of answers from memory and of grounded answers; those without rows are left out."""
    from_memory = [row for row in rows if row.closed_book_em is not None]
    looked_up = [row for row in rows if row.grounded is not None]
    shares = {
        "closed_book_em": [row.closed_book_em for row in from_memory],
        "closed_book_answered": [row.closed_book_answer is not None for row in from_memory],
        "grounded": [row.grounded for row in looked_up],
        "grounded_right": [row.grounded for row in looked_up if row.em],
    }
    figures: dict[str, Any] = {}
    for name, values in shares.items():
        if values:
            share = _interval([float(bool(value)) for value in values], config, seed)
            figures |= {name: _rounded(share.mean), f"{name}_ci95": _ends(share)}
    counts = {"closed_book_n": len(from_memory), "grounded_n": len(looked_up)}
    return figures | {name: count for name, count in counts.items() if count}


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
    """Table with a row per policy and one for the gain of training; all rows have the same keys.

    Only one grouping is shown (`records.shown_group`); the report has all. Lost episodes, answers
    from memory and grounded answers have a column if any policy has them.

    Args:
        results: content of results.json.
    """
    figures = results["eval"]
    policies = [figures[policy] for policy in POLICIES]
    confidence = f"{results['bootstrap']['confidence']:.0%} interval"
    rows = []
    for policy, one in zip(POLICIES, policies, strict=True):
        row = {
            "policy": policy_label(results, policy),
            "EM %": _percent(one["em"]),
            confidence: _percents(one["ci95"]),
        }
        row |= knowledge_columns(one, policies)
        row |= f1_column(one, policies)
        row |= {f"pass@{k} %": _percent(one.get(f"pass_at_{k}")) for k in _measured_k(policies)}
        row |= {"tool calls": f"{one['tool_calls']:.2f}"}
        rows.append(row | loss_columns(one, policies) | group_columns(one, policies))
    gain = figures["gain"]
    last = dict.fromkeys(rows[0], "")
    last["policy"] = f"trained - {gain['baseline'].replace('_', ' ')}"
    last["EM %"] = f"{100 * gain['em']:+.1f}"
    last[confidence] = " to ".join(f"{100 * end:+.1f}" for end in gain["ci95"])
    return [*rows, last]


def f1_column(figures: Mapping[str, Any], policies: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """One policy's F1 by column title; no column if the family's answers are no texts."""
    return {"F1 %": _percent(figures.get("f1"))} if any("f1" in one for one in policies) else {}


def knowledge_columns(
    figures: Mapping[str, Any], policies: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """One policy's rates of `KNOWLEDGE`: column title -> percent, for each that any policy has."""
    return {
        title: _percent(figures.get(name))
        for name, title in KNOWLEDGE.items()
        if any(policy.get(name) is not None for policy in policies)
    }


def loss_columns(
    figures: Mapping[str, Any], policies: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """One policy's counts of `LOSSES`: column title -> count, for each that any policy has."""
    return {
        title: str(figures.get(name, 0))
        for name, title in LOSSES.items()
        if any(policy.get(name) for policy in policies)
    }


def group_columns(
    figures: Mapping[str, Any], policies: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """One policy's EM in each group of the shown grouping: column title -> percent."""
    group = shown_group(policies)
    if group is None:
        return {}
    name, values = group
    by_group = group_of(figures, name)
    return {
        f"{group_label(name, value)} %": _percent(by_group.get(value, {}).get("em"))
        for value in values
    }


def _measured_k(policies: Sequence[Mapping[str, Any]]) -> list[int]:
    present = {key for policy in policies for key, rate in policy.items() if rate is not None}
    return sorted(int(key.rpartition("_")[2]) for key in present if key.startswith("pass_at_"))


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.1f}"


def _percents(ends: list[float]) -> str:
    return " to ".join(_percent(end) for end in ends)

"""Figures of a step's attempts by themselves, before anything learns from them.

They need no model: texts, tokens and rewards say them. Axes: B attempts, H hashed pairs of tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean, pstdev

import numpy as np

from espalier.records.trajectory import FinishReason, Trajectory
from espalier.rewards.answers import occurs_in

_RUN_TOKENS = 4
"""Length of the runs of tokens that repetition compares: shorter ones recur in any language."""
_BUCKETS = 4099
"""Pairs of tokens are counted by a hash, so that memory has a bound."""


def attempt_figures(sampled: Sequence[Trajectory], *, offers_tools: bool) -> dict[str, float]:
    """Return figures of the scored attempts of a step; one whose denominator is empty is missing.

    Args:
        sampled: scored attempts of the step, whatever their order.
        offers_tools: whether the policy may call any.
    """
    if not sampled:
        return {}
    groups = groups_by_task(sampled)
    figures = {
        "reward_spread": fmean(pstdev([t.total_reward for t in group]) for group in groups),
        "disputed_share": fmean(is_disputed(group) for group in groups),
        "scattered_share": fmean(is_scattered(group) for group in groups),
        "truncated_share": fmean(is_truncated(t) for t in sampled),
        "repeated_calls_share": fmean(repeats_a_call(t) for t in sampled),
        "repeated_tokens_share": fmean(repeated_tokens(t) for t in sampled),
    }
    if offers_tools:
        figures["silent_groups_share"] = fmean(
            not any(t.tool_results for t in group) for group in groups
        )
    results = [result for t in sampled for result in t.tool_results]
    if results:
        figures["failed_calls_share"] = fmean(not result.succeeded for result in results)
    answered = [t for t in sampled if t.answer is not None]
    if answered and offers_tools:
        grounded = _grounded(answered)
        figures["grounded_share"] = fmean(grounded)
        right = [found for t, found in zip(answered, grounded, strict=True) if t.is_right]
        if right:
            figures["grounded_right_share"] = fmean(right)
    wrong = [t.total_reward for t in sampled if not t.is_right]
    if wrong:
        figures["wrong_reward"] = fmean(wrong)
        figures |= _wrong_terms([t for t in sampled if not t.is_right])
    if len(groups) > 1 and len(sampled) > len(groups):
        figures["own_task_share"] = _own_task_share(sampled)
    return figures


def _wrong_terms(wrong: Sequence[Trajectory]) -> dict[str, float]:
    """Return `wrong_reward/NAME`: the mean of each further term over the attempts that have it."""
    names = sorted({name for t in wrong for name in t.reward if name != "outcome"})
    return {
        f"wrong_reward/{name}": fmean(t.reward[name] for t in wrong if name in t.reward)
        for name in names
    }


def groups_by_task(sampled: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """Return the attempts at each task, in the order in which the tasks first occur."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in sampled:
        groups.setdefault(trajectory.task_id, []).append(trajectory)
    return list(groups.values())


def is_disputed(group: Sequence[Trajectory]) -> bool:
    """Return whether equal answers to one task were judged differently."""
    verdicts: dict[str, set[bool]] = {}
    for trajectory in group:
        if trajectory.answer is not None:
            verdicts.setdefault(trajectory.answer.strip(), set()).add(trajectory.is_right)
    return any(len(found) > 1 for found in verdicts.values())


def is_scattered(group: Sequence[Trajectory]) -> bool:
    """Return whether different answers to one task were all judged right."""
    return len({t.answer.strip() for t in group if t.is_right and t.answer is not None}) > 1


def is_truncated(trajectory: Trajectory) -> bool:
    """Return whether the attempt ran out of turns or tokens."""
    return trajectory.finish_reason in (FinishReason.MAX_TURNS, FinishReason.MAX_TOKENS)


def is_grounded(trajectory: Trajectory) -> bool:
    """Return whether a result of a call that worked contains the answer's words in a row."""
    answer = trajectory.answer or ""
    return any(r.succeeded and occurs_in(answer, r.content) for r in trajectory.tool_results)


def _grounded(answered: Sequence[Trajectory]) -> list[bool]:
    """Return `is_grounded` of each; attempts of a group often read and answer the same."""
    known: dict[tuple[str, ...], bool] = {}
    found: list[bool] = []
    for attempt in answered:
        read = (r.content for r in attempt.tool_results if r.succeeded)
        key = (attempt.answer or "", *read)
        if key not in known:
            known[key] = is_grounded(attempt)
        found.append(known[key])
    return found


def repeats_a_call(trajectory: Trajectory) -> bool:
    """Return whether the attempt makes the same call, with the same arguments, twice."""
    calls = [
        (result.call.name, json.dumps(result.call.arguments, sort_keys=True))
        for result in trajectory.tool_results
    ]
    return len(set(calls)) < len(calls)


def repeated_tokens(trajectory: Trajectory) -> float:
    """Return the share of runs of four sampled tokens that the attempt has sampled before."""
    runs = [
        trajectory.token_ids[place : place + _RUN_TOKENS]
        for turn in trajectory.turns
        for place in range(turn.action_start, turn.action_end - _RUN_TOKENS + 1)
    ]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def _own_task_share(sampled: Sequence[Trajectory]) -> float:
    """Return the share of attempts whose first action is most like one at the same task.

    A policy that reasons by one template writes the same whatever it is asked, and the share falls
    to that of chance. It is the retrieval form of RAGEN-2's mutual information of task and
    reasoning (arXiv:2604.06268), by texts instead of by scoring each text under each prompt. Of
    equally like attempts each counts by its share, so that equal texts everywhere give chance.
    """
    counts_BH = np.zeros((len(sampled), _BUCKETS), np.float32)
    for row, trajectory in enumerate(sampled):
        if trajectory.turns:
            first = trajectory.turns[0]
            ids = np.asarray(trajectory.token_ids[first.action_start : first.action_end], np.int64)
            pairs = (ids[:-1] * 1_000_003 + ids[1:]) % _BUCKETS
            np.add.at(counts_BH[row], pairs, 1.0)
    norms_B1 = np.linalg.norm(counts_BH, axis=1, keepdims=True)
    unit_BH = counts_BH / np.where(norms_B1 > 0, norms_B1, 1.0)
    likeness_BB = unit_BH @ unit_BH.T
    np.fill_diagonal(likeness_BB, -1.0)
    # equal texts differ in the last bits of their products
    nearest_BB = likeness_BB >= likeness_BB.max(axis=1, keepdims=True) - 1e-4
    tasks_B = np.unique([t.task_id for t in sampled], return_inverse=True)[1]
    same_BB = tasks_B[:, None] == tasks_B[None, :]
    np.fill_diagonal(nearest_BB, val=False)
    return float(((nearest_BB & same_BB).sum(axis=1) / nearest_BB.sum(axis=1)).mean())

"""A step's trajectories as dense rows: which are trained on, their layout, and their batches.

    groups -> learning_batch -> dense_rows -> minibatches -> micro_batches

A unit is a set of rows that stay together: one row, or the two rows of a preference pair.

Axes: B trajectories, T token columns (the longest trajectory), K terms of the reward. See
`espalier.algorithms.batch` for a worked instance.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from espalier.algorithms.batch import Totals
from espalier.algorithms.material import (
    AttemptSummary,
    Everything,
    MaterialRule,
    PreferencePairs,
    Successes,
)
from espalier.records.trajectory import TURNS_TERM, Trajectory
from espalier.training.packing import TrainingSequence
from espalier.training.prefix_tree import common_prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The trajectories of one task, without those that were lost to infrastructure."""

    trajectories: tuple[Trajectory, ...]
    baseline_reward: float | None = None
    """Reward of the greedy trajectory, where the advantages need one (ReMax)."""
    expected_reward: float | None = None
    """Outcome predicted for the task without this group, where the advantages need it (SPO)."""
    is_silenced: bool = False
    """Whether a filter set its advantages to 0; its tokens still count in the loss's normaliser."""
    draw: int | None = None
    """The number of its draw in the prompt ledger; None if it is replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Sampled trajectories in the order of their groups; nothing here depends on weights."""

    sequences: tuple[TrainingSequence, ...]
    """Their loss masks are the rows of `loss_mask_BT`."""
    groups_B: Tensor
    versions_B: Tensor
    """Int64: version of the policy that sampled the trajectory."""
    total_tokens_B: Tensor
    rewards_BT: Tensor
    """A turn's reward on the last token of its action, the rest on the last action token."""
    reward_terms_BK: Tensor
    """The named terms in the order of `reward_names`; NaN where a trajectory lacks one."""
    reward_names: tuple[str, ...]
    action_mask_BT: Tensor
    loss_mask_BT: Tensor
    """The action mask; with `train_on_observations`, everything after the prompt."""
    observed_BT: Tensor
    """Bool: observations, which must stay out of the loss. Computed from the spans of the turns and
    not from the action mask, so that one checks the other."""
    turns_BT: Tensor
    behavior_logprobs_BT: Tensor
    """Nats; NaN on loss tokens that no engine sampled."""
    baseline_rewards_B: Tensor | None
    expected_rewards_B: Tensor | None
    silenced_B: Tensor
    """Bool: `Group.is_silenced` of the trajectory's group."""

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def width(self) -> int:
        """Number of token columns."""
        return self.action_mask_BT.shape[1]


def dense_rows(groups: Sequence[Group], *, with_observations: bool) -> Rows:
    """Lay out the trajectories of `groups`.

    Args:
        groups: groups with at least one trajectory in all.
        with_observations: the ablation that leaves the tools' tokens in the loss, as a trainer
            without an action mask does.
    """
    trajectories = [t for group in groups for t in group.trajectories]
    width = max(len(t.token_ids) for t in trajectories)
    action_BT = _padded([t.action_mask for t in trajectories], width, torch.bool)
    behavior_BT = _padded([t.behavior_logprobs for t in trajectories], width, torch.float32)
    turns_BT, observed_BT = _turns(trajectories, width)
    loss_BT = action_BT
    if with_observations:
        lengths_B = torch.tensor([len(t.token_ids) for t in trajectories])
        inside_BT = torch.arange(width) < lengths_B[:, None]
        loss_BT = (action_BT.cumsum(dim=1) > 0) & inside_BT
    names = tuple(sorted({name for t in trajectories for name in t.reward}))
    terms = [[t.reward.get(name, math.nan) for name in names] for t in trajectories]
    sizes = torch.tensor([len(group.trajectories) for group in groups])
    return Rows(
        sequences=tuple(
            TrainingSequence(
                token_ids=t.token_ids,
                loss_mask=tuple(mask[: len(t.token_ids)]),
                window_starts=t.window_starts,
            )
            for t, mask in zip(trajectories, loss_BT.int().tolist(), strict=True)
        ),
        groups_B=torch.arange(len(groups)).repeat_interleave(sizes),
        versions_B=torch.tensor([t.policy_version for t in trajectories]),
        total_tokens_B=torch.tensor([len(t.token_ids) for t in trajectories]),
        rewards_BT=_rewards(trajectories, action_BT),
        reward_terms_BK=torch.tensor(terms),
        reward_names=names,
        action_mask_BT=action_BT,
        loss_mask_BT=loss_BT,
        observed_BT=observed_BT,
        turns_BT=turns_BT,
        behavior_logprobs_BT=behavior_BT.masked_fill(~action_BT, 0.0).masked_fill(
            loss_BT & ~action_BT, math.nan
        ),
        baseline_rewards_B=_of_groups([group.baseline_reward for group in groups], sizes),
        expected_rewards_B=_of_groups([group.expected_reward for group in groups], sizes),
        silenced_B=torch.tensor([group.is_silenced for group in groups]).repeat_interleave(sizes),
    )


def _of_groups(values: Sequence[float | None], sizes: Tensor) -> Tensor | None:
    """Return [B]: each group's value for its trajectories; None if a group has no value."""
    known = [value for value in values if value is not None]
    return torch.tensor(known).repeat_interleave(sizes) if len(known) == len(values) else None


def _padded(values: Sequence[Sequence[float]], width: int, dtype: torch.dtype) -> Tensor:
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in values], dtype=dtype)


def _turns(trajectories: Sequence[Trajectory], width: int) -> tuple[Tensor, Tensor]:
    """Return turn numbers of action tokens (-1 elsewhere), and which tokens are observations."""
    turns_BT = torch.full((len(trajectories), width), -1)
    observed_BT = torch.zeros(len(trajectories), width, dtype=torch.bool)
    for row, trajectory in enumerate(trajectories):
        for number, turn in enumerate(trajectory.turns):
            turns_BT[row, turn.action_start : turn.action_end] = number
            observed_BT[row, turn.action_end : turn.observation_end] = True
    return turns_BT, observed_BT


def _rewards(trajectories: Sequence[Trajectory], action_BT: Tensor) -> Tensor:
    rewards_BT = torch.zeros(action_BT.shape)
    columns_T = torch.arange(action_BT.shape[1])
    last_B = (columns_T * action_BT).amax(dim=1)
    for row, trajectory in enumerate(trajectories):
        # a trajectory without an action has no token to carry a reward
        if bool(action_BT[row].any()):
            by_turn = trajectory.reward.get(TURNS_TERM, 0.0)
            rewards_BT[row, last_B[row]] = trajectory.total_reward - by_turn
            for turn in trajectory.turns:
                rewards_BT[row, turn.action_end - 1] += turn.reward
    return rewards_BT


class LearningBatch(NamedTuple):
    """Groups whose trajectories are all trained on, and which of them stay together."""

    groups: list[Group]
    units: list[Unit]
    """Row numbers, counted over all groups."""


def learning_batch(groups: Sequence[Group], rule: MaterialRule) -> LearningBatch:
    """Choose what to train on by the algorithm's rule; the result may be empty."""
    match rule:
        case Everything():
            return _single(list(groups))
        case Successes():
            chosen = [_only(group, rule.kept(_attempts(group))) for group in groups]
            return _single([group for group in chosen if group.trajectories])
        case PreferencePairs():
            pairs = [
                _only(group, pair) for group in groups for pair in rule.pairs(_attempts(group))
            ]
            return LearningBatch(pairs, [(2 * n, 2 * n + 1) for n in range(len(pairs))])


def _single(groups: list[Group]) -> LearningBatch:
    rows = sum(len(group.trajectories) for group in groups)
    return LearningBatch(groups, [(row,) for row in range(rows)])


def _only(group: Group, places: Sequence[int]) -> Group:
    return replace(group, trajectories=tuple(group.trajectories[place] for place in places))


def _attempts(group: Group) -> list[AttemptSummary]:
    return [_attempt(trajectory) for trajectory in group.trajectories]


def _attempt(trajectory: Trajectory) -> AttemptSummary:
    return AttemptSummary(
        reward=trajectory.total_reward,
        is_success=trajectory.is_right,
        turns=len(trajectory.turns),
        action_tokens=sum(trajectory.action_mask),
        token_ids=trajectory.token_ids,
    )


Unit = tuple[int, ...]
"""Row numbers."""


def minibatches(units: Sequence[Unit], *, count: int, rng: random.Random) -> list[list[Unit]]:
    """Shuffle `units` and cut them into at most `count` minibatches (the last may be smaller).

    A minibatch has at least one unit, so few units make fewer minibatches.
    """
    order = list(units)
    rng.shuffle(order)
    share = -(-len(order) // count)
    return [order[start : start + share] for start in range(0, len(order), share)]


def micro_batches(
    units: Sequence[Unit], lengths: Sequence[int], *, max_tokens: int
) -> list[list[Unit]]:
    """Cut `units`, sorted by length, into runs of at most `max_tokens` tokens.

    Args:
        units: units of one minibatch.
        lengths: tokens of each row of the step.
        max_tokens: a longer unit gets a run of its own.
    """

    def tokens(unit: Unit) -> int:
        return sum(lengths[row] for row in unit)

    runs: list[list[Unit]] = []
    used = 0
    for unit in sorted(units, key=tokens):
        if not runs or used + tokens(unit) > max_tokens:
            runs.append([])
            used = 0
        runs[-1].append(unit)
        used += tokens(unit)
    return runs


_READ_AGAIN = 4
"""Tokens that a run of trees may have for each node: keys and values of a shared prefix are
gathered for every branch after it, so that memory also grows with the tokens."""


def tree_micro_batches(
    units: Sequence[Unit], sequences: Sequence[TrainingSequence], *, max_nodes: int
) -> list[list[Unit]]:
    """Cut `units` into runs whose prefix trees have at most `max_nodes` nodes.

    Units with common beginnings are neighbours. A full run ends, in its second half, where the
    next run forwards the fewest nodes again.

    Args:
        units: units of one minibatch.
        sequences: all rows of the step.
        max_nodes: a larger unit gets a run of its own. A run's sequences have at most
            `_READ_AGAIN` times as many tokens.
    """
    ordered = sorted(units, key=lambda unit: [sequences[row].token_ids for row in unit])
    sizes = [sum(len(sequences[row].token_ids) for row in unit) for unit in ordered]
    firsts = [_first_context(sequences[unit[0]]) for unit in ordered]
    shared = [0, *(common_prefix(one, other) for one, other in pairwise(firsts))]
    runs: list[list[Unit]] = []
    start = 0
    while start < len(ordered):
        nodes = [
            sizes[start]
        ]  # nodes of the run with each further unit; an upper bound where pairs share more
        for size, common in zip(sizes[start + 1 :], shared[start + 1 :], strict=True):
            nodes.append(nodes[-1] + size - common)
        fitting = sum(
            count <= max_nodes and tokens <= _READ_AGAIN * max_nodes
            for count, tokens in zip(nodes, accumulate(sizes[start:]), strict=True)
        )
        end = start + max(1, fitting)
        if end < len(ordered):
            half = start + (end - start + 1) // 2
            end = min([end, *reversed(range(half, end))], key=lambda n: shared[n])
        runs.append(ordered[start:end])
        start = end
    return runs


def _first_context(sequence: TrainingSequence) -> np.ndarray:
    start, end = sequence.windows[0]
    return np.asarray(sequence.token_ids[start:end])


def rows_of(units: Sequence[Unit]) -> list[int]:
    """Return the rows of `units`, in their order."""
    return [row for unit in units for row in unit]


def totals(units: Sequence[Unit], loss_mask_BT: Tensor, *, max_tokens: float) -> Totals:
    """Return the sizes by which a minibatch's loss is normalised.

    Args:
        units: all units of the minibatch.
        loss_mask_BT: [B, T] of the step.
        max_tokens: longest possible action sequence, for Dr. GRPO's normaliser.
    """
    rows = rows_of(units)
    lengths_B = loss_mask_BT[rows].sum(dim=1)
    return Totals(
        tokens=max(1.0, float(lengths_B.sum())),
        sequences=max(1.0, float((lengths_B > 0).sum())),
        rows=float(len(rows)),
        max_tokens=float(max_tokens),
        pairs=float(sum(len(unit) == 2 for unit in units)),
    )

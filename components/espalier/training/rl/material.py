"""From admitted groups to what the update learns from, as the algorithm's material rule says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from espalier.algorithms.material import (
    Attempt,
    Everything,
    MaterialRule,
    PreferencePairs,
    Successes,
)
from espalier.records.trajectory import Trajectory
from espalier.training.rl.minibatches import Unit
from espalier.training.rl.rows import Group


class Material(NamedTuple):
    """Groups whose trajectories are all learned from, and which of these go together."""

    groups: list[Group]
    units: list[Unit]
    """Row numbers, counted through the groups."""


def learning_material(groups: Sequence[Group], rule: MaterialRule) -> Material:
    """Choose among the trajectories of `groups`; there may be none left."""
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
            return Material(pairs, [(2 * n, 2 * n + 1) for n in range(len(pairs))])


def _single(groups: list[Group]) -> Material:
    rows = sum(len(group.trajectories) for group in groups)
    return Material(groups, [(row,) for row in range(rows)])


def _only(group: Group, places: Sequence[int]) -> Group:
    return replace(group, trajectories=tuple(group.trajectories[place] for place in places))


def _attempts(group: Group) -> list[Attempt]:
    return [_attempt(trajectory) for trajectory in group.trajectories]


def _attempt(trajectory: Trajectory) -> Attempt:
    return Attempt(
        reward=trajectory.total_reward,
        is_success=trajectory.is_right,
        turns=len(trajectory.turns),
        action_tokens=sum(trajectory.action_mask),
        token_ids=trajectory.token_ids,
    )

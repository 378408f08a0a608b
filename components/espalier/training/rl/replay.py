"""A replay buffer of groups that later steps learn from again.

Trajectories keep their recorded behaviour log-probs, so that the importance ratio of an old token
compares with the policy that sampled it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import pstdev

from espalier.config import ReplayConfig
from espalier.records.trajectory import Trajectory, read_trajectories, write_trajectories
from espalier.training.rl.rows import Group

Perplexities = Callable[[Sequence[Trajectory]], list[float]]
"""Returns the perplexity of each trajectory's actions under the current policy."""


@dataclass(frozen=True, slots=True)
class _Entry:
    group: Group
    version: int


class ReplayBuffer:
    """Keeps groups, drops stale ones, and draws some for each step."""

    def __init__(
        self, config: ReplayConfig, perplexities: Perplexities, *, compares_groups: bool
    ) -> None:
        """Start empty.

        Args:
            config: sets what is kept and drawn.
            perplexities: computes the perplexities of trajectories under the current policy.
            compares_groups: whether advantages compare the trajectories of a group. If so, a group
                of one is not replayed, as it has nothing to be compared with.
        """
        self._config = config
        self._least_members = 2 if compares_groups else 1
        self._perplexities = perplexities
        self._entries: list[_Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, groups: Sequence[Group], *, version: int) -> None:
        """Keep `groups`, sampled by step `version`; drop stale ones, and those over capacity."""
        if not self._config.capacity:
            return
        for group in groups:
            kept = _successes(group) if self._config.successes_only else group
            if kept.trajectories:
                sampled_by = min(t.policy_version for t in kept.trajectories)
                if kept.draw is not None:  # the step that learns from it now settles its draw
                    kept = replace(kept, draw=None)
                self._entries.append(_Entry(kept, sampled_by))
        oldest = version - self._config.max_staleness
        self._entries = [entry for entry in self._entries if entry.version > oldest]
        surplus = len(self._entries) - self._config.capacity
        if surplus > 0:
            leaving = set(self._eviction_order()[:surplus])
            self._entries = [e for n, e in enumerate(self._entries) if n not in leaving]

    def draw(self, step_groups: int, rng: random.Random) -> list[Group]:
        """Draw the groups that a step of `step_groups` replays; none before there are enough."""
        count = self._config.groups_of(step_groups)
        inside = self._within_window() if self._entries else []
        candidates = [group for group in inside if len(group.trajectories) >= self._least_members]
        if not count or len(candidates) < count:
            return []
        if self._config.order == "fifo":
            return rng.sample(candidates, count)
        # Efraimidis and Spirakis 2006: the largest u^(1/w) are a weighted draw without replacement
        keys = [rng.random() ** (1 / max(_reward_std(group), 1e-9)) for group in candidates]
        ranked = sorted(range(len(candidates)), key=lambda n: -keys[n])
        return [candidates[n] for n in ranked[:count]]

    def save(self, path: Path) -> list[list[float | None]]:
        """Write the trajectories to `path`; return the other data for `restore`, as plain data."""
        write_trajectories(path, [t for e in self._entries for t in e.group.trajectories])
        return [
            [
                len(e.group.trajectories),
                e.version,
                e.group.baseline_reward,
                e.group.is_silenced,
                e.group.expected_reward,
            ]
            for e in self._entries
        ]

    def restore(self, path: Path, layout: Sequence[Sequence[float | None]]) -> None:
        """Continue from what `save` wrote and returned.

        Args:
            path: of the trajectories.
            layout: of each group its size, version, baseline reward, whether it is silenced, and
                its expected reward.
        """
        trajectories = iter(read_trajectories(path))
        self._entries = []
        for size, version, baseline, silenced, expected in layout:
            assert size is not None
            assert version is not None
            members = tuple(next(trajectories) for _ in range(int(size)))
            group = Group(
                trajectories=members,
                baseline_reward=baseline,
                is_silenced=bool(silenced),
                expected_reward=expected,
            )
            self._entries.append(_Entry(group, int(version)))

    def _eviction_order(self) -> list[int]:
        """Return indices of the entries, in the order in which they are dropped."""
        places = list(range(len(self._entries)))  # entries are in the order of their arrival
        if self._config.order == "priority":
            places.sort(key=lambda n: _reward_std(self._entries[n].group))
        return places

    def _within_window(self) -> list[Group]:
        groups = [entry.group for entry in self._entries]
        if self._config.perplexity_window is None:
            return groups
        low, high = self._config.perplexity_window
        found = iter(self._perplexities([t for group in groups for t in group.trajectories]))
        return [
            replace(
                group,
                trajectories=tuple(t for t in group.trajectories if low <= next(found) <= high),
            )
            for group in groups
        ]


def _successes(group: Group) -> Group:
    kept = tuple(t for t in group.trajectories if t.is_right)
    return replace(group, trajectories=kept)


def _reward_std(group: Group) -> float:
    return pstdev(t.total_reward for t in group.trajectories)

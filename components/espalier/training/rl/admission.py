"""Which sampled groups train, whoever sampled them: counting, comparing, filtering."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol

from espalier.algorithms.filters import GroupFilter
from espalier.config import TrainingConfig
from espalier.records import Task
from espalier.records.trajectory import Trajectory
from espalier.training.rl.credit_in_groups import numbers_of
from espalier.training.rl.rows import Group


class DrawsTasks(Protocol):
    """What sampling needs of the curriculum."""

    def draw(self, count: int, rng: Random, *, without: Iterable[str] = ()) -> list[Task]:
        """`count` tasks worth sampling now."""
        ...

    def observe(self, task_id: str, *, attempts: int, successes: int) -> None:
        """What became of a group."""
        ...


@dataclass(slots=True)
class StepRollouts:
    """All groups of a step: those that train, and figures over every one sampled."""

    groups: list[Group] = field(default_factory=list)
    sampled: list[Trajectory] = field(default_factory=list)
    groups_sampled: int = 0
    zero_variance: int = 0
    """Sampled groups whose rewards were all equal."""
    lost: int = 0
    """Episodes that ended because their environment was lost; no reward came of them."""
    too_stale: int = 0
    """Groups that were dropped because too many versions had passed."""

    @property
    def zero_variance_share(self) -> float:
        """Share of the sampled groups whose rewards were all equal."""
        return self.zero_variance / max(1, self.groups_sampled)


class SamplesGroups(Protocol):
    """What the loop needs of a sampler."""

    def sample(self, step: int, *, groups: int) -> StepRollouts:
        """The groups of optimizer step `step`, `groups` of them if they can be had."""
        ...

    def close(self) -> None:
        """Stop whatever samples ahead; nothing is sampled any more."""
        ...


class Admission:
    """Counts what was sampled, tells the curriculum, and lets through what may train."""

    def __init__(self, tasks: DrawsTasks, config: TrainingConfig) -> None:
        self._tasks = tasks
        self._config = config
        filters = config.algorithm.group_filters
        self._refilling = [rule for rule in filters if rule.regenerations]
        self._final = [rule for rule in filters if not rule.regenerations]
        self.regenerations = max((rule.regenerations for rule in filters), default=0)
        """How often other tasks may be drawn in place of groups that are not admitted."""
        self.wants_baselines = "baseline_rewards_B" in config.algorithm.needs
        """Whether every task is to be played greedily as well (ReMax)."""

    def count(self, group: Sequence[Trajectory], result: StepRollouts) -> None:
        """Take note of a group that was sampled, whatever becomes of it; none of it is lost."""
        result.sampled.extend(group)
        result.groups_sampled += 1
        rewards = [t.total_reward for t in group]
        result.zero_variance += max(rewards) == min(rewards)
        self._tasks.observe(group[0].task_id, attempts=len(group), successes=successes(group))

    def comparable(self, group: Sequence[Trajectory], baseline: float | None) -> list[Group]:
        """The group, or nothing where it has lost its siblings or its baseline."""
        is_alone = len(group) == 1 < self._config.group_size
        if is_alone or (self.wants_baselines and baseline is None):
            return []
        return [Group(trajectories=tuple(group), baseline_reward=baseline)]

    def admitted(self, groups: list[Group]) -> list[Group]:
        """Those that pass the filters which let others be drawn in their place."""
        return self._kept(groups, self._refilling)

    def chosen(self, groups: list[Group]) -> list[Group]:
        """Those that the other filters choose among all groups of a step."""
        return self._kept(groups, self._final)

    def _kept(self, groups: list[Group], filters: Sequence[GroupFilter]) -> list[Group]:
        for rule in filters:
            found = rule.select(numbers_of(groups, rule, self._config.algorithm))
            groups = [
                replace(groups[p], is_silenced=groups[p].is_silenced or p in found.silenced)
                for p in found.kept
            ]
        return groups


def successes(group: Sequence[Trajectory]) -> int:
    """How many of the group the verifier accepted."""
    return sum(t.is_right for t in group)


def is_mixed(group: Sequence[Trajectory]) -> bool:
    """Whether some of the group succeeded and some did not."""
    return 0 < successes(group) < len(group)

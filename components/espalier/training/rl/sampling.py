"""Samples a step's groups: draw tasks, roll out, admit what the filters keep, draw again.

Processes that train together share the sampling (`SplitRoller`, `RankZeroRoller`,
`RankZeroSampler`): each of them ends up with all trajectories.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from espalier.algorithms import Algorithm
from espalier.algorithms.batch import CreditBatch
from espalier.algorithms.filters import GroupFilter
from espalier.config import TrainingConfig
from espalier.curriculum.pool import TaskPool
from espalier.records import Task
from espalier.records.trajectory import Trajectory
from espalier.rollout.roller import TrajectorySampler
from espalier.training.parallel import Processes
from espalier.training.rl.ledger import Outcome, PromptLedger
from espalier.training.rl.reward_functions import (
    RewardFunction,
    no_further_reward,
    without_terms,
)
from espalier.training.rl.rows import Group, dense_rows


@dataclass(slots=True)
class StepRollouts:
    """The groups that a step learns from, and figures over all that were sampled."""

    groups: list[Group] = field(default_factory=list)
    sampled: list[Trajectory] = field(default_factory=list)
    groups_sampled: int = 0
    zero_variance: int = 0
    """Number of sampled groups whose rewards were all equal; for groups of one, of those that were
    right, which give as little to learn."""
    informative: int = 0
    """Number of trajectories in groups whose rewards differ, and in groups of one: a perfect filter
    would sample only these."""
    equal_outcomes: int = 0
    """Number of sampled groups whose outcomes were all equal, whatever their other terms."""
    lost: int = 0
    """Number of episodes lost to infrastructure; they have no reward. Those whose own program ended
    the sandbox are wrong answers, and count as sampled."""

    @property
    def zero_variance_share(self) -> float:
        """The share of the sampled groups that `zero_variance` counts."""
        return self.zero_variance / max(1, self.groups_sampled)

    @property
    def equal_outcomes_share(self) -> float:
        """The share of the sampled groups whose outcomes were all equal."""
        return self.equal_outcomes / max(1, self.groups_sampled)


class StepSampler(Protocol):
    """Samples the groups of a step, alternating with the learner or ahead of it."""

    ledger: PromptLedger
    """Outcomes of the prompts that it drew; the learner settles the groups that it was given."""
    left_out: set[str]
    """Names of the terms that rewards are without, which a response to a notice changes."""

    def sample(self, step: int, *, groups: int) -> StepRollouts:
        """Return up to `groups` groups for optimizer step `step`."""
        ...

    def close(self) -> None:
        """Stop sampling ahead; `sample` must not be called any more."""
        ...


class CountedGroup(NamedTuple):
    """A group that was reported to the curriculum."""

    trajectories: list[Trajectory]
    """Trajectories with all terms of their rewards."""
    expected: float | None
    """Outcome predicted without them, where the algorithm needs it (SPO)."""


class GroupAdmission:
    """Decides which sampled groups train; counts all of them and reports them to the curriculum."""

    def __init__(
        self,
        tasks: TaskPool,
        config: TrainingConfig,
        reward_function: RewardFunction = no_further_reward,
    ) -> None:
        self.ledger = PromptLedger()
        """Records each group that is not admitted."""
        self.left_out: set[str] = set()
        """Names of the terms that rewards are without."""
        self._tasks = tasks
        self._config = config
        self._reward_function = reward_function
        filters = config.algorithm.group_filters
        self._refilling = [rule for rule in filters if rule.regenerations]
        self._final = [rule for rule in filters if not rule.regenerations]
        self.regenerations = max((rule.regenerations for rule in filters), default=0)
        """How often other tasks may be drawn to replace groups that are not admitted."""
        self.wants_baselines = "baseline_rewards_B" in config.algorithm.needs
        """Whether the algorithm compares with a greedy rollout of each task (ReMax)."""

    def count(self, group: Sequence[Trajectory], result: StepRollouts) -> CountedGroup:
        """Complete a group's rewards, without its lost episodes, and count it."""
        group = self._rewarded(group)
        result.sampled.extend(group)
        result.groups_sampled += 1
        rewards = [t.total_reward for t in group]
        is_flat = max(rewards) == min(rewards)
        has_siblings = self._config.group_size > 1
        result.zero_variance += is_flat if has_siblings else group[0].is_right
        result.equal_outcomes += len({t.reward["outcome"] for t in group}) == 1
        result.informative += 0 if is_flat and has_siblings else len(group)
        task_id, predicts = group[0].task_id, self._config.algorithm.predicts_rewards
        expected = self._tasks.predicted_reward(task_id) if predicts else None
        self._tasks.observe(task_id, attempts=len(group), successes=successes(group))
        return CountedGroup(group, expected)

    def comparable_group(
        self, counted: CountedGroup, greedy: Trajectory | None, *, draw: int
    ) -> list[Group]:
        """Return the group; [] if lost episodes left nothing to compare it with.

        Args:
            counted: result of `count`.
            greedy: the greedy rollout that it is compared with, if any, without further terms.
            draw: number of its draw in the ledger.
        """
        group = tuple(counted.trajectories)
        compares = self._config.algorithm.compares_groups
        is_alone = compares and len(group) == 1 < self._config.group_size
        if is_alone or (self.wants_baselines and greedy is None):
            self.ledger.settle([draw], Outcome.LOST)
            return []
        baseline = None if greedy is None else self._rewarded([greedy])[0].total_reward
        return [
            Group(
                trajectories=group,
                baseline_reward=baseline,
                expected_reward=counted.expected,
                draw=draw,
            )
        ]

    def _rewarded(self, group: Sequence[Trajectory]) -> list[Trajectory]:
        return [without_terms(one, self.left_out) for one in self._reward_function(group)]

    def apply_refill_filters(self, groups: list[Group]) -> list[Group]:
        """Apply the filters whose dropped groups are replaced by further draws."""
        return self._apply(groups, self._refilling)

    def apply_final_filters(self, groups: list[Group]) -> list[Group]:
        """Apply the other filters, to all groups of a step at once."""
        return self._apply(groups, self._final)

    def _apply(self, groups: list[Group], filters: Sequence[GroupFilter]) -> list[Group]:
        for rule in filters:
            found = rule.select(filter_values(groups, rule, self._config.algorithm))
            kept = set(found.kept)
            dropped = [group for p, group in enumerate(groups) if p not in kept]
            self.ledger.settle(draws_of(dropped), Outcome.FILTERED)
            groups = [
                replace(groups[p], is_silenced=groups[p].is_silenced or p in found.silenced)
                for p in found.kept
            ]
        return groups


def draws_of(groups: Sequence[Group]) -> list[int]:
    """Return the groups' draw numbers in the prompt ledger; replayed groups have none."""
    return [group.draw for group in groups if group.draw is not None]


def successes(group: Sequence[Trajectory]) -> int:
    """Return how many of the group the verifier accepted."""
    return sum(t.is_right for t in group)


def is_mixed(group: Sequence[Trajectory]) -> bool:
    """Return whether some of the group succeeded and some did not."""
    return 0 < successes(group) < len(group)


def filter_values(
    groups: Sequence[Group], rule: GroupFilter, algorithm: Algorithm
) -> list[list[float]]:
    """Return each trajectory's reward, outcome or largest absolute advantage, by group."""
    if rule.reads == "outcomes":
        return [[t.reward["outcome"] for t in group.trajectories] for group in groups]
    if rule.reads == "rewards" or not groups:
        return [[t.total_reward for t in group.trajectories] for group in groups]
    rows = dense_rows(groups, with_observations=False)
    assert algorithm.advantage is not None, "the profile's validation demands one for this filter"
    credit = algorithm.advantage.credit(
        CreditBatch(
            rewards_BT=rows.rewards_BT,
            action_mask_BT=rows.action_mask_BT,
            groups_B=rows.groups_B,
            turns_BT=rows.turns_BT,
            baseline_rewards_B=rows.baseline_rewards_B,
            expected_rewards_B=rows.expected_rewards_B,
            total_tokens_B=rows.total_tokens_B,
            reward_terms_BK=rows.reward_terms_BK,
            reward_names=rows.reward_names,
        )
    )

    places_B1 = credit.advantages_BT.abs().argmax(dim=1, keepdim=True)
    strongest = credit.advantages_BT.gather(1, places_B1).squeeze(1).tolist()
    numbers = iter(strongest)
    return [[next(numbers) for _ in group.trajectories] for group in groups]


GroupsByTask = dict[str, list[Trajectory]]
"""Trajectories by task id, in the order in which the tasks were drawn; groups may be ragged."""

MIN_EXPECTED_PASS_SHARE = 0.25
"""Lower bound on the share of tasks expected to pass the screening: without it, the draw after a
bad one would be hundreds of tasks."""


class GroupSampler:
    """Fills a step with groups that the algorithm's filters admit.

    With `screening`, each task is sampled that many times first, and the rest of its group only if
    some of these rollouts solve it and some do not (SPEED-RL, arXiv:2506.09016): a task that is too
    hard or too easy costs only `screening` rollouts, not a whole group.
    """

    def __init__(
        self,
        roller: TrajectorySampler,
        tasks: TaskPool,
        config: TrainingConfig,
        *,
        seed: int,
        screening: int = 0,
        reward_function: RewardFunction = no_further_reward,
    ) -> None:
        self._roller = roller
        self._screening = screening
        self._tasks = tasks
        self._config = config
        self._seed = seed
        self._admission = GroupAdmission(tasks, config, reward_function)
        self.ledger, self.left_out = self._admission.ledger, self._admission.left_out
        self._draws: dict[str, int] = {}
        """Draws of the step, by task."""

    def sample(self, step: int, *, groups: int) -> StepRollouts:
        """Sample until there are `groups` groups, or the regenerations are used up."""
        rng = random.Random(f"tasks:{self._seed}:{step}")
        result = StepRollouts()
        self._draws = {}
        for attempt in range(1 + self._admission.regenerations):
            missing = groups - len(result.groups)
            wanted = self._tries(missing, result) if missing > 0 else 0
            tasks = self._tasks.draw(wanted, rng, without=self._draws) if wanted else []
            if not tasks:
                break
            drawn = [task.task_id for task in tasks]
            self._draws |= zip(drawn, self.ledger.draw(drawn), strict=True)
            seed = self._draw_seed(step, attempt)
            sampled = self._sample_groups(tasks, missing, step, seed, result)
            result.groups += self._admission.apply_refill_filters(
                self._comparable(tasks, sampled, result)
            )
        result.groups = self._admission.apply_final_filters(result.groups)
        return result

    def close(self) -> None:
        """Do nothing: no sampling runs between steps."""

    def _tries(self, missing: int, result: StepRollouts) -> int:
        """Return how many tasks to draw, so that about `missing` of them pass the screening."""
        if not self._screening:
            return missing
        passed = len(result.groups) / result.groups_sampled if result.groups_sampled else 0.5
        return math.ceil(missing / max(passed, MIN_EXPECTED_PASS_SHARE))

    def _sample_groups(
        self, tasks: Sequence[Task], missing: int, step: int, seed: int, result: StepRollouts
    ) -> GroupsByTask:
        """Return a whole group of every task, or of the first `missing` that pass the screening."""
        size = self._config.group_size
        groups = self._roll_out(tasks, self._screening or size, step, seed, result)
        lost = [self._draws[task.task_id] for task in tasks if task.task_id not in groups]
        self.ledger.settle(lost, Outcome.LOST)
        if not self._screening:
            return groups
        promising = [task for task in tasks if is_mixed(groups.get(task.task_id, []))][:missing]
        rest = size - self._screening
        more = self._roll_out(promising, rest, step, seed + 1, result) if promising else {}
        for task in promising:
            groups[task.task_id] += more.get(task.task_id, [])
        chosen = {task.task_id for task in promising}
        for task_id in [task_id for task_id in groups if task_id not in chosen]:
            group = groups.pop(task_id)
            outcome = Outcome.NOT_NEEDED if is_mixed(group) else Outcome.SCREENED
            self.ledger.settle([self._draws[task_id]], outcome)
            self._admission.count(group, result)
        return groups

    def _roll_out(
        self, tasks: Sequence[Task], samples: int, step: int, seed: int, result: StepRollouts
    ) -> GroupsByTask:
        """Return `samples` trajectories per task, without episodes lost to infrastructure."""
        trajectories = self._roller.roll_out(
            tasks, samples=samples, temperature=self._config.temperature_at(step), seed=seed
        )
        groups: GroupsByTask = {}
        for trajectory in trajectories:
            if not trajectory.is_lost:
                groups.setdefault(trajectory.task_id, []).append(trajectory)
        result.lost += len(trajectories) - sum(len(group) for group in groups.values())
        return groups

    def _comparable(
        self, tasks: Sequence[Task], sampled: GroupsByTask, result: StepRollouts
    ) -> list[Group]:
        """Count the sampled groups; return the comparable ones, with their baselines."""
        baselines = self._baselines([task for task in tasks if task.task_id in sampled])
        groups: list[Group] = []
        for task_id, group in sampled.items():
            counted = self._admission.count(group, result)
            draw = self._draws[task_id]
            self.ledger.close(draw)
            groups += self._admission.comparable_group(counted, baselines.get(task_id), draw=draw)
        return groups

    def _baselines(self, tasks: Sequence[Task]) -> dict[str, Trajectory]:
        """Return each task's greedy rollout, where the algorithm needs it (ReMax)."""
        if not self._admission.wants_baselines or not tasks:
            return {}
        greedy = self._roller.roll_out(tasks, samples=1, temperature=0.0, seed=0)
        return {t.task_id: t for t in greedy if not t.is_lost}

    def _draw_seed(self, step: int, attempt: int) -> int:
        return random.Random(f"draw:{self._seed}:{step}:{attempt}").getrandbits(48)


class SplitRoller:
    """Each rank rolls out tasks[rank::count] on an engine of its own; all get all trajectories."""

    def __init__(self, own: TrajectorySampler, processes: Processes) -> None:
        self._own = own
        self._processes = processes

    def roll_out(
        self, tasks: Sequence[Task], *, samples: int, temperature: float, seed: int
    ) -> list[Trajectory]:
        """Sample `samples` trajectories of every task; draws depend on the number of processes."""
        rank, count = self._processes.rank, self._processes.count
        if (
            count > 1
        ):  # with one common seed the first task of each process would get the same draws
            seed = random.Random(f"process:{seed}:{rank}").getrandbits(48)
        own = self._own.roll_out(
            tasks[rank::count], samples=samples, temperature=temperature, seed=seed
        )
        by_process = self._processes.gather(own)
        found: list[Trajectory] = []
        for number in range(len(tasks)):
            start = number // count * samples
            found += by_process[number % count][start : start + samples]
        return found


class RankZeroRoller:
    """Rank 0 rolls out for all processes: only it sends requests to the inference server."""

    def __init__(self, own: TrajectorySampler, processes: Processes) -> None:
        self._own = own
        self._processes = processes

    def roll_out(
        self, tasks: Sequence[Task], *, samples: int, temperature: float, seed: int
    ) -> list[Trajectory]:
        """Sample `samples` trajectories of every task, on rank 0."""
        own: list[Trajectory] = []
        if self._processes.is_first:
            own = self._own.roll_out(tasks, samples=samples, temperature=temperature, seed=seed)
        return self._processes.broadcast(own)


class RankZeroSampler:
    """Rank 0 samples for all processes: only it has a worker."""

    def __init__(
        self,
        own: StepSampler | None,
        processes: Processes,
        *,
        end_worker: Callable[[], None] = lambda: None,
    ) -> None:
        """Set rank 0's sampler, and what ends the worker that it samples by.

        On ranks > 0 `own` is None, and their ledger has no draws.
        """
        self._end_worker = end_worker
        self.ledger = PromptLedger() if own is None else own.ledger
        self.left_out = set[str]() if own is None else own.left_out
        self._own = own
        self._processes = processes

    def sample(self, step: int, *, groups: int) -> StepRollouts:
        """Return the groups that rank 0 sampled for this step."""
        own = StepRollouts() if self._own is None else self._own.sample(step, groups=groups)
        rollouts = self._processes.broadcast(own)
        if self._own is None:  # only rank 0 keeps the ledger
            rollouts.groups = [replace(group, draw=None) for group in rollouts.groups]
        return rollouts

    def close(self) -> None:
        """Stop sampling ahead; `sample` must not be called any more."""
        if self._own is not None:
            self._own.close()
        self._end_worker()

import random
from itertools import cycle

import pytest

from espalier.config import CurriculumConfig, TrainingConfig
from espalier.curriculum.pool import TaskPool
from espalier.training.grpo.sampling import GroupSampler
from tests.unit.training.specimens import make_task, make_trajectory

TASKS = [make_task(f"name{number}") for number in range(12)]
MIXED, NEVER, ALWAYS = (0, 1, 0, 1), (0, 0, 0, 0), (1, 1, 1, 1)


class ScriptedRoller:
    """Gives the n-th group it is asked for the n-th rewards of the script."""

    def __init__(self, script):
        self._script = cycle(script)
        self.calls = []

    def roll_out(self, tasks, *, samples, temperature, seed):
        self.calls.append((tuple(task.task_id for task in tasks), temperature, seed))
        groups = [(task, next(self._script)) for task in tasks]
        assert all(len(rewards) == samples for _, rewards in groups)
        return [make_trajectory(task, reward) for task, rewards in groups for reward in rewards]


class RecordingPool(TaskPool):
    """A pool that remembers what it was told."""

    def __init__(self):
        super().__init__(TASKS, CurriculumConfig())
        self.told = {}

    def observe(self, task_id, *, attempts, successes):
        self.told[task_id] = (attempts, successes)
        super().observe(task_id, attempts=attempts, successes=successes)


def _sampler(script, *, pool=None, seed=0, **changes):
    settings = {"tasks_per_step": 3, "group_size": 4, "minibatches": 1, "max_regenerations": 2}
    roller = ScriptedRoller(script)
    config = TrainingConfig(**(settings | changes))
    return roller, GroupSampler(roller, pool or RecordingPool(), config, seed=seed)


def test_groups_that_carry_signal_fill_a_step_at_once():
    roller, sampler = _sampler([MIXED])
    result = sampler.sample(0)
    assert len(result.groups) == 3
    assert len(roller.calls) == 1
    assert result.zero_variance_share == 0


def test_a_group_holds_the_trajectories_of_one_task():
    _, sampler = _sampler([MIXED])
    for group in sampler.sample(0).groups:
        assert len(group) == 4
        assert len({trajectory.task_id for trajectory in group}) == 1


def test_groups_without_signal_are_dropped_and_others_sampled_instead():
    roller, sampler = _sampler([NEVER, MIXED, ALWAYS, MIXED, NEVER, MIXED])
    result = sampler.sample(0)
    assert [len(tasks) for tasks, _, _ in roller.calls] == [3, 2, 1]
    assert len(result.groups) == 3
    assert all({t.total_reward for t in group} == {0.0, 1.0} for group in result.groups)


def test_every_rollout_is_counted_also_those_of_dropped_groups():
    _, sampler = _sampler([NEVER, MIXED, ALWAYS, MIXED, NEVER, MIXED])
    result = sampler.sample(0)
    assert result.groups_sampled == 6
    assert len(result.sampled) == 24
    assert result.zero_variance_share == pytest.approx(0.5)


def test_no_task_is_sampled_twice_in_a_step():
    roller, sampler = _sampler([NEVER])
    sampler.sample(0)
    drawn = [task_id for tasks, _, _ in roller.calls for task_id in tasks]
    assert len(drawn) == len(set(drawn)) == 9


def test_sampling_ends_when_the_regenerations_are_used_up():
    roller, sampler = _sampler([NEVER], max_regenerations=1)
    result = sampler.sample(0)
    assert len(roller.calls) == 2
    assert result.groups == []
    assert result.zero_variance_share == 1


def test_sampling_ends_when_no_task_is_left():
    roller, sampler = _sampler([NEVER], max_regenerations=9, tasks_per_step=5)
    sampler.sample(0)
    assert sum(len(tasks) for tasks, _, _ in roller.calls) == len(TASKS)


def test_the_curriculum_hears_of_every_group():
    pool = RecordingPool()
    _, sampler = _sampler([NEVER, MIXED, ALWAYS], pool=pool, max_regenerations=0)
    sampler.sample(0)
    assert sorted(pool.told.values()) == [(4, 0), (4, 2), (4, 4)]


def test_a_step_is_drawn_the_same_by_a_sampler_that_did_not_run_the_steps_before():
    went_before, fresh = _sampler([MIXED]), _sampler([MIXED])
    went_before[1].sample(0)
    went_before[0].calls.clear()
    for _, sampler in (went_before, fresh):
        sampler.sample(1)
    assert went_before[0].calls == fresh[0].calls


def test_every_call_of_the_engine_has_a_seed_of_its_own():
    roller, sampler = _sampler([NEVER])
    for step in range(5):
        sampler.sample(step)
    other, sampler = _sampler([NEVER], seed=1)
    sampler.sample(0)
    seeds = [seed for _, _, seed in roller.calls + other.calls]
    assert len(seeds) == len(set(seeds)) == 18


def test_the_tasks_of_a_step_are_those_that_the_curriculum_draws():
    _, sampler = _sampler([MIXED], seed=5)
    drawn = TaskPool(TASKS, CurriculumConfig()).draw(3, random.Random("tasks:5:0"))
    assert [group[0].task_id for group in sampler.sample(0).groups] == [t.task_id for t in drawn]

from dataclasses import replace
from itertools import cycle

import pytest

from espalier.config import CurriculumConfig, TrainingConfig
from espalier.curriculum.pool import TaskPool
from espalier.records.trajectory import FinishReason
from espalier.training.rl.reward_functions import no_further_reward
from espalier.training.rl.sampling import GroupSampler
from tests.factories.training import make_task, make_trajectory

TASKS = [make_task(f"name{number}") for number in range(12)]
MIXED, NEVER, ALWAYS = (0, 1, 0, 1), (0, 0, 0, 0), (1, 1, 1, 1)


class ScriptedRoller:
    """Gives the n-th group it is asked for the n-th rewards of the script; None is a lost episode.

    A greedy answer is always half right.
    """

    def __init__(self, script):
        self._script = cycle(script)
        self.calls = []

    def roll_out(self, tasks, *, samples, temperature, seed):
        if temperature == 0:
            return [make_trajectory(task, 0.5) for task in tasks]
        self.calls.append((tuple(task.task_id for task in tasks), temperature, seed))
        groups = [(task, next(self._script)) for task in tasks]
        return [_played(task, r) for task, rewards in groups for r in rewards[:samples]]


def _played(task, reward):
    acted = {"token_ids": (5, 6), "action_mask": (0, 1), "behavior_logprobs": (0.0, -1.0)}
    if reward is None:
        lost = make_trajectory(task, 0, **acted)
        return replace(lost, reward={}, finish_reason=FinishReason.SANDBOX_LOST)
    return make_trajectory(task, reward, **acted)


class RecordingPool(TaskPool):
    """A pool that records what was drawn and observed."""

    def __init__(self, **options):
        super().__init__(TASKS, CurriculumConfig(), **options)
        self.observed = {}
        self.drawn = []

    def draw(self, count, rng, **apart):
        tasks = super().draw(count, rng, **apart)
        self.drawn += [task.task_id for task in tasks]
        return tasks

    def observe(self, task_id, *, attempts, successes):
        self.observed[task_id] = (attempts, successes)
        super().observe(task_id, attempts=attempts, successes=successes)


def _regenerating(times):
    return [{"name": "zero_variance", "action": "regenerate", "max_regenerations": times}]


class Sampler:
    """Samples as many groups as its profile names, as the loop does without a replay buffer."""

    def __init__(self, roller, pool, config, **options):
        self._count = config.tasks_per_step
        self._sampler = GroupSampler(roller, pool, config, **options)
        self.ledger = self._sampler.ledger

    def sample(self, step):
        return self._sampler.sample(step, groups=self._count)


def _sampler(
    script,
    *,
    pool=None,
    seed=0,
    screening=0,
    filters=None,
    reward_function=no_further_reward,
    **changes,
):
    roller = ScriptedRoller(script)
    algorithm = {"filters": _regenerating(2) if filters is None else filters}
    algorithm |= changes.pop("algorithm", {})
    settings = {"tasks_per_step": 3, "group_size": 4, "minibatches": 1, "algorithm": algorithm}
    config = TrainingConfig.model_validate(settings | changes)
    options = {"seed": seed, "screening": screening, "reward_function": reward_function}
    return roller, Sampler(roller, pool or RecordingPool(), config, **options)


def test_who_broke_the_sandbox_is_wrong_in_its_group():
    class Breaking(ScriptedRoller):
        def roll_out(self, tasks, **how):
            played = super().roll_out(tasks, **how)
            return [
                t if t.is_right else replace(t, finish_reason=FinishReason.PROGRAM_BROKE_SANDBOX)
                for t in played
            ]

    pool = RecordingPool()
    config = TrainingConfig.model_validate(
        {"tasks_per_step": 3, "group_size": 4, "minibatches": 1, "algorithm": {"filters": []}}
    )
    result = Sampler(Breaking([MIXED]), pool, config, seed=0).sample(0)
    assert result.lost == 0
    assert [len(group.trajectories) for group in result.groups] == [4, 4, 4]
    assert set(pool.observed.values()) == {(4, 2)}
    assert sum(t.broke_sandbox for t in result.sampled) == 6


def test_groups_that_carry_signal_fill_a_step_at_once():
    roller, sampler = _sampler([MIXED])
    result = sampler.sample(0)
    assert len(result.groups) == 3
    assert len(roller.calls) == 1
    assert result.zero_variance_share == 0


def test_a_group_holds_the_trajectories_of_one_task():
    _, sampler = _sampler([MIXED])
    for group in sampler.sample(0).groups:
        assert len(group.trajectories) == 4
        assert len({trajectory.task_id for trajectory in group.trajectories}) == 1


def test_groups_without_signal_are_dropped_and_others_sampled_instead():
    roller, sampler = _sampler([NEVER, MIXED, ALWAYS, MIXED, NEVER, MIXED])
    result = sampler.sample(0)
    assert [len(tasks) for tasks, _, _ in roller.calls] == [3, 2, 1]
    assert len(result.groups) == 3
    assert all(
        {t.total_reward for t in group.trajectories} == {0.0, 1.0} for group in result.groups
    )


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
    roller, sampler = _sampler([NEVER], filters=_regenerating(1))
    result = sampler.sample(0)
    assert len(roller.calls) == 2
    assert result.groups == []
    assert result.zero_variance_share == 1


def test_sampling_ends_when_no_task_is_left():
    roller, sampler = _sampler([NEVER], filters=_regenerating(9), tasks_per_step=5)
    sampler.sample(0)
    assert sum(len(tasks) for tasks, _, _ in roller.calls) == len(TASKS)


def test_every_group_is_reported_to_the_curriculum():
    pool = RecordingPool()
    _, sampler = _sampler([NEVER, MIXED, ALWAYS], pool=pool, filters=[])
    sampler.sample(0)
    assert sorted(pool.observed.values()) == [(4, 0), (4, 2), (4, 4)]


def test_a_step_is_drawn_the_same_without_the_steps_before():
    went_before, fresh = _sampler([MIXED]), _sampler([MIXED])
    went_before[1].sample(0)
    went_before[0].calls.clear()
    for _, sampler in (went_before, fresh):
        sampler.sample(1)
    assert went_before[0].calls == fresh[0].calls


def test_every_engine_call_has_its_own_seed():
    roller, sampler = _sampler([NEVER])
    for step in range(5):
        sampler.sample(step)
    other, sampler = _sampler([NEVER], seed=1)
    sampler.sample(0)
    seeds = [seed for _, _, seed in roller.calls + other.calls]
    assert len(seeds) == len(set(seeds)) == 18


def test_a_steps_tasks_are_those_drawn_by_the_curriculum():
    pool = RecordingPool()
    _, sampler = _sampler([MIXED], pool=pool)
    assert [g.trajectories[0].task_id for g in sampler.sample(0).groups] == pool.drawn
    assert len(set(pool.drawn)) == 3


def test_another_seed_draws_other_tasks():
    drawn = [
        {g.trajectories[0].task_id for g in _sampler([MIXED], seed=seed)[1].sample(0).groups}
        for seed in range(8)
    ]
    assert any(tasks != drawn[0] for tasks in drawn)


def test_a_lost_episode_leaves_its_group_without_a_reward():
    pool = RecordingPool()
    _, sampler = _sampler([(0, 1, None, 1)], pool=pool)
    result = sampler.sample(0)
    assert [len(group.trajectories) for group in result.groups] == [3, 3, 3]
    assert result.lost == 3
    assert set(pool.observed.values()) == {(3, 2)}


def test_a_group_with_one_trajectory_left_is_dropped():
    _, sampler = _sampler([(None, 1, None, None), MIXED, MIXED], filters=[])
    assert [len(group.trajectories) for group in sampler.sample(0).groups] == [4, 4]


def test_without_filters_groups_of_equal_rewards_train_too():
    _, sampler = _sampler([NEVER, MIXED, ALWAYS], filters=[])
    result = sampler.sample(0)
    assert len(result.groups) == 3
    assert result.zero_variance_share == pytest.approx(2 / 3)
    assert (result.informative, len(result.sampled)) == (4, 12)


def test_a_clamped_group_stays_and_is_silenced():
    _, sampler = _sampler(
        [NEVER, MIXED, MIXED], filters=[{"name": "zero_variance", "action": "clamp"}]
    )
    assert [group.is_silenced for group in sampler.sample(0).groups] == [True, False, False]


def test_ranking_filters_choose_among_all_groups_of_the_step():
    filters = [*_regenerating(2), {"name": "group_top_k", "fraction": 0.34}]
    _, sampler = _sampler([(0, 0, 0, 1), MIXED, NEVER, (0, 0, 0, 1)], filters=filters)
    result = sampler.sample(0)
    assert [[t.total_reward for t in g.trajectories] for g in result.groups] == [list(MIXED)]
    assert len(result.sampled) == 16


def test_a_filter_of_advantages_is_given_those_of_the_algorithm():
    _, sampler = _sampler([NEVER, MIXED, ALWAYS], filters=[{"name": "advantage_gate"}])
    result = sampler.sample(0)
    assert [[t.total_reward for t in g.trajectories] for g in result.groups] == [list(MIXED)]


def test_remax_samples_every_task_greedily_too():
    _, sampler = _sampler([MIXED], filters=[], algorithm={"preset": "remax"})
    assert {group.baseline_reward for group in sampler.sample(0).groups} == {0.5}


def test_spo_is_told_what_was_predicted_without_the_group():
    spo = {
        "filters": [],
        "algorithm": {"preset": "spo"},
        "pool": RecordingPool(reward_span=(-1, 1)),
    }
    _, sampler = _sampler([ALWAYS, NEVER], tasks_per_step=2, **spo)
    first, second = sampler.sample(0).groups
    assert first.expected_reward == 0  # nothing was seen before, and 0 is the middle of the span
    assert second.expected_reward > 0  # another of its kind was solved


@pytest.mark.parametrize("preset", ["spo", "ppo"])
def test_a_right_group_of_one_counts_as_learned(preset):
    pool = RecordingPool(reward_span=(0, 1))
    alone = {"algorithm": {"preset": preset}, "group_size": 1, "tasks_per_step": 4}
    _, sampler = _sampler([(1,), (1,), (1,), (0,)], filters=[], pool=pool, **alone)
    result = sampler.sample(0)
    assert result.zero_variance_share == 0.75
    assert result.informative == 4


def test_spo_learns_from_what_lost_its_siblings():
    spo = {"filters": [], "algorithm": {"preset": "spo"}, "pool": RecordingPool(reward_span=(0, 1))}
    _, sampler = _sampler([(1, None, None, None)], **spo)
    assert [len(group.trajectories) for group in sampler.sample(0).groups] == [1, 1, 1]


def test_the_temperature_follows_its_schedule():
    roller, sampler = _sampler(
        [MIXED], steps=3, temperature_schedule={"shape": "linear", "final": 0.5}
    )
    for step in range(3):
        sampler.sample(step)
    assert [temperature for _, temperature, _ in roller.calls] == [1.0, 0.75, 0.5]


def test_a_task_too_hard_costs_only_its_screening():
    _, sampler = _sampler([NEVER], screening=2)
    result = sampler.sample(0)
    assert result.groups == []
    assert len(result.sampled) == 2 * result.groups_sampled


def test_a_task_that_passes_screening_gets_its_whole_group():
    roller, sampler = _sampler([MIXED], screening=2)
    result = sampler.sample(0)
    assert len(result.groups) == 3
    for group in result.groups:
        assert len(group.trajectories) == 4
        assert len({trajectory.task_id for trajectory in group.trajectories}) == 1
    assert len(roller.calls) == 2


def test_no_more_groups_are_completed_than_a_step_needs():
    _, sampler = _sampler([MIXED], screening=2)
    result = sampler.sample(0)
    assert result.groups_sampled > 3
    assert len(result.sampled) == 2 * result.groups_sampled + 2 * 3


def test_screened_tasks_are_reported_to_the_curriculum_too():
    pool = RecordingPool()
    _, sampler = _sampler([NEVER, MIXED], pool=pool, screening=2)
    result = sampler.sample(0)
    assert len(pool.observed) == result.groups_sampled
    assert {attempts for attempts, _ in pool.observed.values()} == {2, 4}


def test_an_episode_lost_in_screening_is_missing_from_its_group():
    _, sampler = _sampler([(1, 0, None, 0)], screening=3)
    result = sampler.sample(0)
    assert result.lost == result.groups_sampled
    assert {len(group.trajectories) for group in result.groups} == {3}


def test_dapos_filter_compares_outcomes_and_not_lengths():
    filters = [{"name": "zero_variance", "compares": "outcomes"}]

    def pay_by_place(group):
        return [replace(t, reward=t.reward | {"length": -place}) for place, t in enumerate(group)]

    _, sampler = _sampler([MIXED, ALWAYS, NEVER], filters=filters, reward_function=pay_by_place)
    kept = sampler.sample(0)
    assert len(kept.groups) == 1
    assert kept.zero_variance == 0, "their whole rewards differ"
    assert [t.total_reward for t in kept.groups[0].trajectories] == [0, 0, -2, -2]


LOST = (None, None, None, None)


@pytest.mark.parametrize(
    ("script", "how", "counts"),
    [
        ([MIXED], {}, {}),
        ([NEVER, MIXED, ALWAYS, MIXED], {}, {"filtered": 3}),
        ([NEVER], {}, {"filtered": 9}),
        ([MIXED, LOST, (None, 1, None, None)], {"filters": []}, {"lost": 2}),
        ([MIXED], {"screening": 2}, {"not_needed": 3}),
        ([NEVER, MIXED, MIXED, NEVER, ALWAYS, MIXED], {"screening": 2}, {"screened": 3}),
        ([MIXED, LOST, NEVER], {"screening": 2}, {"lost": 2, "screened": 3}),
        (
            [(0, 0, 0, 1), MIXED, (0, 0, 0, 1)],
            {"filters": [{"name": "group_top_k", "fraction": 0.34}]},
            {"filtered": 2},
        ),
    ],
)
def test_every_drawn_prompt_is_kept_or_dropped_under_a_reason(script, how, counts):
    roller, sampler = _sampler(script, **how)
    ledger = sampler.ledger
    kept = [group.draw for group in sampler.sample(0).groups]
    assert sorted(kept) == [draw.number for draw in ledger.open_draws]
    assert ledger.counts == counts
    assert {draw.task_id for draw in ledger.open_draws} <= {t for c in roller.calls for t in c[0]}

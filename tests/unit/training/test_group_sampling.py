import random
from dataclasses import replace
from itertools import cycle
from statistics import fmean

import pytest

from espalier.algorithms.batch import CreditBatch
from espalier.algorithms.shaping import LinearLength, TermContext
from espalier.config import CurriculumConfig, TrainingConfig
from espalier.curriculum.pool import TaskPool
from espalier.records import Message
from espalier.records.step_figures import STEP_FIGURES
from espalier.records.trajectory import FinishReason, Turn
from espalier.training.attempt_figures import attempt_figures
from espalier.training.health import HealthMonitor, new_detectors
from espalier.training.rl.reward_functions import TermRewards, no_further_reward, with_terms
from espalier.training.rl.rows import dense_rows
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
        self.observed, self.drawn = {}, []

    def draw(self, count, rng, **apart):
        tasks = super().draw(count, rng, **apart)
        self.drawn += [task.task_id for task in tasks]
        return tasks

    def observe(self, task_id, *, attempts, successes):
        self.observed[task_id] = (attempts, successes)
        super().observe(task_id, attempts=attempts, successes=successes)


def _regenerating(times):
    return [{"name": "zero_variance", "action": "regenerate", "max_regenerations": times}]


def _sampler(
    script,
    *,
    pool=None,
    seed=0,
    screening=0,
    filters=None,
    reward_function=no_further_reward,
    roller=ScriptedRoller,
    **changes,
):
    made = roller(script)
    algorithm = {"filters": _regenerating(2) if filters is None else filters}
    algorithm |= changes.pop("algorithm", {})
    settings = {"tasks_per_step": 3, "group_size": 4, "minibatches": 1, "algorithm": algorithm}
    config = TrainingConfig.model_validate(settings | changes)
    options = {"seed": seed, "screening": screening, "reward_function": reward_function}
    return made, GroupSampler(made, pool or RecordingPool(), config, **options)


def test_who_broke_the_sandbox_is_wrong_in_its_group():
    class Breaking(ScriptedRoller):
        def roll_out(self, tasks, **how):
            broke = FinishReason.PROGRAM_BROKE_SANDBOX
            played = super().roll_out(tasks, **how)
            return [t if t.is_right else replace(t, finish_reason=broke) for t in played]

    pool = RecordingPool()
    _, sampler = _sampler([MIXED], pool=pool, filters=[], roller=Breaking)
    result = sampler.sample(0, groups=3)
    assert result.lost == 0
    assert [len(group.trajectories) for group in result.groups] == [4, 4, 4]
    assert set(pool.observed.values()) == {(4, 2)}
    assert sum(t.broke_sandbox for t in result.sampled) == 6


def test_groups_that_carry_signal_fill_a_step_at_once():
    pool = RecordingPool()
    roller, sampler = _sampler([MIXED], pool=pool)
    result = sampler.sample(0, groups=3)
    ids = [{trajectory.task_id for trajectory in group.trajectories} for group in result.groups]
    assert ids == [{task_id} for task_id in pool.drawn]
    assert len(set(pool.drawn)) == 3
    assert [len(group.trajectories) for group in result.groups] == [4, 4, 4]
    assert len(roller.calls) == 1
    assert result.zero_variance_share == 0


def test_groups_without_signal_are_counted_and_others_sampled_instead():
    roller, sampler = _sampler([NEVER, MIXED, ALWAYS, MIXED, NEVER, MIXED])
    result = sampler.sample(0, groups=3)
    assert [len(tasks) for tasks, _, _ in roller.calls] == [3, 2, 1]
    rewards = [{t.total_reward for t in group.trajectories} for group in result.groups]
    assert rewards == [{0.0, 1.0}] * 3
    assert (result.groups_sampled, len(result.sampled)) == (6, 24)
    assert result.zero_variance_share == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("regenerations", "tasks_per_step", "calls", "drawn"),
    [(1, 3, 2, 6), (2, 3, 3, 9), (9, 5, 3, len(TASKS))],
)
def test_sampling_ends_without_regenerations_or_tasks(regenerations, tasks_per_step, calls, drawn):
    filters = _regenerating(regenerations)
    roller, sampler = _sampler([NEVER], filters=filters, tasks_per_step=tasks_per_step)
    result = sampler.sample(0, groups=tasks_per_step)
    ids = [task_id for tasks, _, _ in roller.calls for task_id in tasks]
    assert (len(roller.calls), len(ids)) == (calls, drawn)
    assert len(set(ids)) == drawn, "no task twice in a step"
    assert result.groups == []
    assert result.zero_variance_share == 1


def test_a_step_is_drawn_the_same_without_the_steps_before():
    went_before, fresh = _sampler([MIXED]), _sampler([MIXED])
    went_before[1].sample(0, groups=3)
    went_before[0].calls.clear()
    for _, sampler in (went_before, fresh):
        sampler.sample(1, groups=3)
    assert went_before[0].calls == fresh[0].calls


def test_every_engine_call_has_its_own_seed():
    roller, sampler = _sampler([NEVER])
    for step in range(5):
        sampler.sample(step, groups=3)
    other, sampler = _sampler([NEVER], seed=1)
    sampler.sample(0, groups=3)
    seeds = [seed for _, _, seed in roller.calls + other.calls]
    assert len(seeds) == len(set(seeds)) == 18
    assert [tasks for tasks, *_ in roller.calls[:3]] != [tasks for tasks, *_ in other.calls]


def test_a_lost_episode_leaves_its_group_without_a_reward():
    pool = RecordingPool()
    _, sampler = _sampler([(0, 1, None, 1)], pool=pool)
    result = sampler.sample(0, groups=3)
    assert [len(group.trajectories) for group in result.groups] == [3, 3, 3]
    assert result.lost == 3
    assert set(pool.observed.values()) == {(3, 2)}


CREDIT_BY_HAND = {
    # 1.0, 0.9, 0.6, 0.0 and -0.1 are left: their mean is 0.48, their deviation 0.50695
    "dr_grpo": (0.52, 0.42, 0.12, -0.48, -0.58),
    "grpo": (1.02574, 0.82848, 0.23671, -0.94683, -1.14409),
    # each minus the mean of the four others
    "rloo": (0.65, 0.525, 0.15, -0.6, -0.725),
}


@pytest.mark.parametrize("preset", CREDIT_BY_HAND)
@pytest.mark.parametrize("places", [(2, 3, 6), (0, 1, 2), (5, 6, 7)])
def test_lost_episodes_are_in_no_baseline_of_siblings(preset, places):
    # NeMo-RL#4029: what timed out was masked, and its 0 still lowered the mean of its group
    played = [(1, 2), (1, 4), (1, 10), (0, 1), (0, 4)]  # outcome, actions
    script = list(played)
    for place in places:
        script.insert(place, None)

    class Scripted(ScriptedRoller):
        def roll_out(self, tasks, **how):
            return [_acted(task, one) for task in tasks for one in script]

    penalty = LinearLength(unit="tokens", target=3, per_unit=0.05, cap=0.4)
    _, sampler = _sampler(
        [], filters=[], roller=Scripted, group_size=8, tasks_per_step=2,
        algorithm={"preset": preset},
        reward_function=TermRewards([penalty], TermContext(max_tokens=64)),
    )  # fmt: skip
    result = sampler.sample(0, groups=2)
    assert (result.lost, len(result.sampled)) == (6, 10)
    assert [[t.total_reward for t in group.trajectories] for group in result.groups] == [
        pytest.approx([1.0, 0.9, 0.6, 0.0, -0.1])
    ] * 2
    algorithm = TrainingConfig.model_validate({"algorithm": {"preset": preset}}).algorithm
    rows = dense_rows(result.groups, with_observations=False)
    values = {"rewards_BT": rows.rewards_BT, "action_mask_BT": rows.action_mask_BT}
    credit = algorithm.advantage.credit(CreditBatch(**values, groups_B=rows.groups_B))
    first_BT = credit.advantages_BT[:, 1].tolist()
    assert first_BT == pytest.approx([*CREDIT_BY_HAND[preset] * 2], abs=1e-4)


def _acted(task, one):
    """An attempt with that outcome and so many turns of one token; None is lost after many."""
    outcome, actions = one or (0, 40)
    turns = tuple(
        Turn(action_start=n, action_end=n + 1, observation_end=n + 1) for n in range(1, actions + 1)
    )
    made = make_trajectory(
        task, outcome, token_ids=(5,) * (actions + 1), action_mask=(0, *[1] * actions),
        behavior_logprobs=(0.0, *[-1.0] * actions), turns=turns,
    )  # fmt: skip
    made = replace(
        made, messages=(*task.prompt, *[Message(role="assistant", content="a")] * actions)
    )
    return made if one else replace(made, reward={}, finish_reason=FinishReason.TIMEOUT)


def test_without_filters_groups_of_equal_rewards_train_too():
    pool = RecordingPool()
    _, sampler = _sampler([NEVER, MIXED, ALWAYS], pool=pool, filters=[])
    result = sampler.sample(0, groups=3)
    assert len(result.groups) == 3
    assert result.zero_variance_share == pytest.approx(2 / 3)
    assert (result.informative, len(result.sampled)) == (4, 12)
    assert sorted(pool.observed.values()) == [(4, 0), (4, 2), (4, 4)]


def test_a_clamped_group_stays_and_is_silenced():
    clamp = [{"name": "zero_variance", "action": "clamp"}]
    groups = _sampler([NEVER, MIXED, MIXED], filters=clamp)[1].sample(0, groups=3).groups
    assert [group.is_silenced for group in groups] == [True, False, False]


def test_remax_samples_every_task_greedily_too():
    _, sampler = _sampler([MIXED], filters=[], algorithm={"preset": "remax"})
    assert {group.baseline_reward for group in sampler.sample(0, groups=3).groups} == {0.5}


@pytest.mark.parametrize(
    ("script", "filters", "sampled"),
    [
        (
            [(0, 0, 0, 1), MIXED, NEVER, (0, 0, 0, 1)],
            [*_regenerating(2), {"name": "group_top_k", "fraction": 0.34}],
            16,
        ),
        ([NEVER, MIXED, ALWAYS], [{"name": "advantage_gate"}], 12),
    ],
)
def test_filters_of_ranks_and_advantages_read_all_groups(script, filters, sampled):
    _, sampler = _sampler(script, filters=filters)
    result = sampler.sample(0, groups=3)
    assert [[t.total_reward for t in g.trajectories] for g in result.groups] == [list(MIXED)]
    assert len(result.sampled) == sampled


def test_spo_is_told_what_was_predicted_without_the_group():
    spo = {"filters": [], "algorithm": {"preset": "spo"}}
    pool = RecordingPool(reward_span=(-1, 1))
    _, sampler = _sampler([ALWAYS, NEVER], tasks_per_step=2, pool=pool, **spo)
    first, second = sampler.sample(0, groups=2).groups
    assert first.expected_reward == 0  # nothing was seen before, and 0 is the middle of the span
    assert second.expected_reward > 0  # another of its kind was solved
    pool = RecordingPool(reward_span=(0, 1))
    _, sampler = _sampler([(1, None, None, None)], pool=pool, **spo)
    alone = [len(group.trajectories) for group in sampler.sample(0, groups=3).groups]
    assert alone == [1, 1, 1], "SPO learns from what lost its siblings"


@pytest.mark.parametrize("preset", ["spo", "ppo"])
def test_a_right_group_of_one_counts_as_learned(preset):
    pool = RecordingPool(reward_span=(0, 1))
    alone = {"algorithm": {"preset": preset}, "group_size": 1, "tasks_per_step": 4}
    _, sampler = _sampler([(1,), (1,), (1,), (0,)], filters=[], pool=pool, **alone)
    result = sampler.sample(0, groups=4)
    assert (result.zero_variance_share, result.informative) == (0.75, 4)


def test_the_temperature_follows_its_schedule():
    roller, sampler = _sampler(
        [MIXED], steps=3, temperature_schedule={"shape": "linear", "final": 0.5}
    )
    for step in range(3):
        sampler.sample(step, groups=3)
    assert [temperature for _, temperature, _ in roller.calls] == [1.0, 0.75, 0.5]


def test_tasks_that_pass_screening_get_whole_groups_until_enough():
    roller, sampler = _sampler([MIXED], screening=2)
    result = sampler.sample(0, groups=3)
    assert [len(group.trajectories) for group in result.groups] == [4, 4, 4]
    assert all(len({t.task_id for t in group.trajectories}) == 1 for group in result.groups)
    assert len(roller.calls) == 2
    assert result.groups_sampled > 3
    assert len(result.sampled) == 2 * result.groups_sampled + 2 * 3


def test_screened_tasks_cost_little_and_are_reported_to_the_curriculum():
    pool = RecordingPool()
    _, sampler = _sampler([NEVER, MIXED], pool=pool, screening=2)
    result = sampler.sample(0, groups=3)
    assert len(pool.observed) == result.groups_sampled
    assert {attempts for attempts, _ in pool.observed.values()} == {2, 4}
    _, sampler = _sampler([NEVER], screening=2)
    result = sampler.sample(0, groups=3)
    assert result.groups == []
    assert len(result.sampled) == 2 * result.groups_sampled


def test_an_episode_lost_in_screening_is_missing_from_its_group():
    _, sampler = _sampler([(1, 0, None, 0)], screening=3)
    result = sampler.sample(0, groups=3)
    assert result.lost == result.groups_sampled
    assert {len(group.trajectories) for group in result.groups} == {3}


def test_dapos_filter_compares_outcomes_and_not_lengths():
    filters = [{"name": "zero_variance", "compares": "outcomes"}]

    def pay_by_place(group):
        return [replace(t, reward=t.reward | {"length": -place}) for place, t in enumerate(group)]

    _, sampler = _sampler([MIXED, ALWAYS, NEVER], filters=filters, reward_function=pay_by_place)
    kept = sampler.sample(0, groups=3)
    assert len(kept.groups) == 1
    assert kept.zero_variance == 0, "their whole rewards differ"
    assert [t.total_reward for t in kept.groups[0].trajectories] == [0, 0, -2, -2]


def test_a_term_that_is_left_out_counts_nowhere():
    turns = (Turn(action_start=1, action_end=2, observation_end=2),)

    def pay_by_place(group):
        return [
            with_terms(replace(t, turns=turns), {"judge": float(place)}, [0.5])
            for place, t in enumerate(group)
        ]

    _, sampler = _sampler([ALWAYS], filters=[], reward_function=pay_by_place)
    sampler.left_out |= {"judge", "turns"}
    found = sampler.sample(0, groups=1)
    [group] = found.groups
    assert [t.reward for t in group.trajectories] == [{"outcome": 1.0, "format": 0.0}] * 4
    assert float(dense_rows([group], with_observations=False).rewards_BT.sum()) == 4.0
    assert found.zero_variance == 1


def test_a_greedy_baseline_is_without_a_left_out_term_too():
    def pay(group):
        return [with_terms(t, {"judge": 9.0}, []) for t in group]

    _, sampler = _sampler([MIXED], algorithm={"preset": "remax"}, reward_function=pay)
    sampler.left_out.add("judge")
    [group] = sampler.sample(0, groups=1).groups
    assert group.baseline_reward == 0.5


LOST = (None, None, None, None)


@pytest.mark.parametrize(
    ("script", "how", "counts"),
    [
        ([NEVER, MIXED, ALWAYS, MIXED], {}, {"filtered": 3}),
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
    kept = [group.draw for group in sampler.sample(0, groups=3).groups]
    assert sorted(kept) == [draw.number for draw in ledger.open_draws]
    assert ledger.counts == counts
    assert {draw.task_id for draw in ledger.open_draws} <= {t for c in roller.calls for t in c[0]}


def _flipped(share, rng):
    """Forty tasks known by heart or never solved, judged by a verifier that errs."""
    script = []
    for number in range(40):
        truth = [number % 2] * 8
        script.append(tuple(1 - one if rng.random() < share else one for one in truth))
    return script


def test_a_noisy_verifier_looks_like_something_to_learn():
    # these two figures fall with noise, as their descriptions say: neither tells noise from signal
    found = []
    for share in (0.0, 0.05, 0.15, 0.3):
        script, made = _flipped(share, random.Random(7)), []
        _, sampler = _sampler(script, filters=[], group_size=8, tasks_per_step=4)
        for step in range(10):
            made.append(sampler.sample(step, groups=4))
        zero, equal = (
            sum(one.zero_variance for one in made) / 40,
            sum(one.equal_outcomes for one in made) / 40,
        )
        assert zero == equal
        found.append(zero)
    assert found[0] == 1.0
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.15
    for name in ("zero_variance_share", "equal_outcomes_share"):
        assert "nois" in STEP_FIGURES[name].what


class AnswersAlike(ScriptedRoller):
    """Every attempt at a task gives the same answer, whatever the script judges."""

    def roll_out(self, tasks, **how):
        return [replace(t, answer=t.task_id) for t in super().roll_out(tasks, **how)]


@pytest.mark.parametrize("share", [0.05, 0.15, 0.3])
def test_a_verifier_that_becomes_noisy_is_told(share):
    # post-training-experiments#10: broken ties looked healthier, while the gradient was noise
    rng, noisy_from = random.Random(3), 11
    monitor = HealthMonitor(new_detectors(TrainingConfig()), lambda: 0.0)
    zero, told = {}, []
    script = _flipped(0.0, rng) + [one for _ in range(2) for one in _flipped(share, rng)]
    _, sampler = _sampler(script, filters=[], group_size=8, tasks_per_step=4, roller=AnswersAlike)
    for step in range(1, 31):
        result = sampler.sample(step, groups=4)
        figures = attempt_figures(result.sampled, offers_tools=False)
        zero.setdefault(step >= noisy_from, []).append(result.zero_variance_share)
        row = {"step": float(step), "pass_rate": 0.5, "rollouts": 32.0 * step}
        told += monitor.observe(row | figures)
    assert fmean(zero[True]) < fmean(zero[False]) == 1.0, "which looks like more to learn from"
    [notice] = [one for one in told if one.detector == "disputed"]
    assert noisy_from <= notice.since_step <= notice.step <= noisy_from + 12

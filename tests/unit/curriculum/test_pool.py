import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.config import CurriculumConfig
from espalier.curriculum.learnability import keep_learnable
from espalier.curriculum.pool import TaskPool
from tests.factories.records import make_task


def _task(number):
    # patterns of their own, so that no task learns from another
    return make_task(f"t{number}", pattern=f"s{number}")


TASKS = [_task(number) for number in range(20)]
IDS = [task.task_id for task in TASKS]
MIDDLE = set(IDS[5:15])


def _pool(**settings_):
    """Ten of twenty tasks are solved every other time; five never, five always."""
    pool = TaskPool(TASKS, CurriculumConfig(pass_rate_band=(0.2, 0.8), **settings_))
    for number, task_id in enumerate(IDS):
        successes = 0 if number < 5 else 4 if number < 15 else 8
        pool.observe(task_id, attempts=8, successes=successes)
    pool.refresh()
    return pool


def _drawn_ids(pool, count, seed=0, without=()):
    return [task.task_id for task in pool.draw(count, random.Random(seed), without=without)]


def test_before_the_first_refresh_every_task_may_be_drawn():
    pool = TaskPool(TASKS, CurriculumConfig())
    assert pool.num_kept == 20
    assert set(_drawn_ids(pool, 20)) == set(IDS)


def test_refresh_keeps_the_tasks_inside_the_band():
    assert set(_pool().kept_ids()) == MIDDLE


def test_a_curriculum_that_is_off_keeps_every_task():
    assert _pool(enabled=False).num_kept == 20


def test_an_empty_band_leaves_the_pool_unchanged():
    pool = TaskPool(TASKS, CurriculumConfig(pass_rate_band=(0.4, 0.6)))
    for task_id in IDS:
        pool.observe(task_id, attempts=8, successes=0)
    pool.refresh()
    assert pool.num_kept == 20


def test_tasks_come_from_the_band_except_the_exploring_share():
    pool = _pool(explore_share=0.2)
    drawn = Counter(
        draw in MIDDLE for seed in range(1000) for draw in _drawn_ids(pool, 1, seed=seed)
    )
    assert 0.75 < drawn[True] / 1000 < 0.85


def test_without_exploration_only_the_band_is_drawn_while_it_lasts():
    assert set(_drawn_ids(_pool(explore_share=0), 10)) == MIDDLE


def test_an_exhausted_band_is_filled_up_from_the_rest():
    drawn = _drawn_ids(_pool(explore_share=0), 14)
    assert set(drawn[:10]) == MIDDLE
    assert len(set(drawn)) == 14


@given(
    count=st.integers(0, 30),
    seed=st.integers(0, 99),
    without=st.sets(st.sampled_from(IDS)),
    explore_share=st.sampled_from([0.0, 0.3, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_drawn_tasks_are_distinct_and_never_the_excluded_ones(count, seed, without, explore_share):
    drawn = _drawn_ids(_pool(explore_share=explore_share), count, seed=seed, without=without)
    assert len(set(drawn)) == len(drawn) == min(count, 20 - len(without))
    assert not set(drawn) & without


def test_the_same_generator_draws_the_same_tasks():
    assert _drawn_ids(_pool(), 12, seed=5) == _drawn_ids(_pool(), 12, seed=5)


def test_a_restored_pool_draws_and_sorts_as_the_unbroken_one():
    unbroken = _pool()
    unbroken.observe("t7", attempts=8, successes=8)  # known, but not sorted anew yet
    resumed = TaskPool(TASKS, CurriculumConfig(pass_rate_band=(0.2, 0.8)))
    resumed.restore(unbroken.state(), unbroken.kept_ids())
    assert _drawn_ids(resumed, 12) == _drawn_ids(unbroken, 12)
    unbroken.refresh()
    resumed.refresh()
    assert resumed.kept_ids() == unbroken.kept_ids()
    assert resumed.estimates() == unbroken.estimates()


def test_newer_groups_count_more_than_older_ones():
    pool = TaskPool(TASKS, CurriculumConfig())
    for successes in (0, 8):
        pool.observe("t0", attempts=8, successes=successes)
    for successes in (8, 0):
        pool.observe("t1", attempts=8, successes=successes)
    rates = pool.estimates()
    assert rates["t0"] > 0.5 > rates["t1"]


def test_an_untried_task_has_the_estimate_of_its_pattern():
    alike = [
        task.model_copy(update={"metadata": task.metadata.model_copy(update={"pattern": shape})})
        for task, shape in zip(TASKS[:4], ("easy", "easy", "hard", "hard"), strict=True)
    ]
    pool = TaskPool(alike, CurriculumConfig())
    pool.observe("t0", attempts=8, successes=8)
    pool.observe("t2", attempts=8, successes=0)
    rates = pool.estimates()
    assert rates["t1"] > 0.8
    assert rates["t3"] < 0.2


@given(st.lists(st.floats(0, 1), min_size=20, max_size=20))
@settings(max_examples=50, deadline=None)
def test_learnable_tasks_are_those_inside_the_band_in_their_order(rates):
    by_id = dict(zip(IDS, rates, strict=True))
    kept = keep_learnable(TASKS, by_id, (0.05, 0.9))
    assert [t.task_id for t in kept] == [i for i in IDS if 0.05 <= by_id[i] <= 0.9]


def test_both_ends_of_the_band_are_inside():
    rates = dict.fromkeys(IDS, 0.5) | {"t0": 0.05, "t1": 0.9, "t2": 0.0, "t3": 1.0}
    kept = {task.task_id for task in keep_learnable(TASKS, rates, (0.05, 0.9))}
    assert {"t0", "t1"} <= kept
    assert not {"t2", "t3"} & kept


ALIKE = [
    make_task(f"{pattern}{number}", pattern=f"{pattern}(C)")
    for pattern, count in (("never", 60), ("always", 30), ("sometimes", 9), ("once", 1))
    for number in range(count)
]


def _pattern_pool(draw, **settings_):
    """Half of every pattern but the last was tried."""
    config = CurriculumConfig(draw=draw, **{"explore_share": 0.0, **settings_})
    pool = TaskPool(ALIKE, config)
    successes = {"never": 0, "always": 4, "sometimes": 2}
    for task in random.Random(0).sample(ALIKE, len(ALIKE)):
        name = task.metadata.pattern.removesuffix("(C)")
        if name in successes and int(task.task_id.removeprefix(name)) % 2:
            pool.observe(task.task_id, attempts=4, successes=successes[name])
    pool.refresh()
    return pool


def _shares(pool, seeds=400):
    drawn = [task for seed in range(seeds) for task in pool.draw(1, random.Random(seed))]
    patterns = Counter(task.metadata.pattern.removesuffix("(C)") for task in drawn)
    return {name: count / seeds for name, count in patterns.items()}


def test_uniform_draws_tasks_alike():
    assert _shares(_pattern_pool("uniform"))["never"] == pytest.approx(0.6, abs=0.08)


def test_patterns_are_drawn_alike_whatever_their_size():
    shares = _shares(_pattern_pool("patterns"))
    assert all(share == pytest.approx(0.25, abs=0.08) for share in shares.values())


@pytest.mark.parametrize(("draw", "expected"), [("kinds", 0.5), ("band", 0.1)])
def test_kinds_are_drawn_alike_within_the_band(draw, expected):
    steps = [1] * 90 + [3] * 10
    tasks = [make_task(f"t{n}", pattern=f"s{n}", hops=hops) for n, hops in enumerate(steps)]
    pool = TaskPool(tasks, CurriculumConfig(draw=draw, explore_share=0.0))
    for number, task in enumerate(tasks):
        pool.observe(task.task_id, attempts=4, successes=0 if number < 10 else 2)
    pool.refresh()
    drawn = [task for seed in range(400) for task in pool.draw(1, random.Random(seed))]
    assert all(int(task.task_id[1:]) >= 10 for task in drawn)
    hard = sum(task.metadata.difficulty == 3 for task in drawn) / len(drawn)
    assert hard == pytest.approx(expected, abs=0.08)


def test_predicted_draws_what_is_solved_now_and_then():
    assert _shares(_pattern_pool("predicted"))["sometimes"] > 3 * 0.09


def test_the_frontier_gives_untried_tasks_of_its_patterns():
    pool = _pattern_pool("frontier")
    drawn = [task.task_id for seed in range(50) for task in pool.draw(3, random.Random(seed))]
    assert {task_id for task_id in drawn if not task_id.startswith("once")} <= {
        f"sometimes{number}" for number in range(0, 9, 2)
    }


@pytest.mark.parametrize("draw", ["uniform", "kinds", "patterns", "predicted", "frontier"])
def test_every_rule_draws_each_task_once_until_none_is_left(draw):
    pool = _pattern_pool(draw)
    gone = {task.task_id for task in ALIKE[:20]}
    drawn = [task.task_id for task in pool.draw(100, random.Random(1), without=gone)]
    assert len(set(drawn)) == len(drawn) == 80
    assert not gone & set(drawn)


@pytest.mark.parametrize("draw", ["predicted", "frontier"])
def test_a_restored_pool_predicts_and_draws_as_the_unbroken_one(draw):
    unbroken = _pattern_pool(draw, explore_share=0.1)
    resumed = TaskPool(ALIKE, CurriculumConfig(draw=draw, explore_share=0.1))
    resumed.restore(json.loads(json.dumps(unbroken.state())), unbroken.kept_ids())
    for pool in (unbroken, resumed):
        pool.observe("sometimes2", attempts=4, successes=4)
    assert _drawn_ids(resumed, 30) == _drawn_ids(unbroken, 30)
    assert resumed.estimates() == unbroken.estimates()


def test_a_pool_may_predict_and_draw_all_tasks_alike():
    pool = TaskPool(ALIKE, CurriculumConfig(enabled=False), reward_span=(-1, 1))
    for number in range(30):
        pool.observe(f"always{number}", attempts=1, successes=1)
        pool.observe(f"never{number}", attempts=1, successes=0)
    assert -1 <= pool.predicted_reward("never40") < -0.4 < pool.predicted_reward("once0") < 1
    assert _shares(pool)["never"] == pytest.approx(0.6, abs=0.08)


def test_added_tasks_are_drawn_by_prediction_too():
    pool = TaskPool(ALIKE[:60], CurriculumConfig(draw="predicted", explore_share=0.0))
    pool.add(ALIKE[60:])
    assert len(pool.draw(100, random.Random(0))) == 100


def test_drawn_tasks_get_other_names():
    def rename(task, rng):
        return task.model_copy(update={"arguments": {"names": rng.random()}})

    pool = TaskPool(TASKS, CurriculumConfig(), rename=rename)
    drawn, again = (pool.draw(5, random.Random(0)) for _ in range(2))
    assert drawn == again
    assert len({task.arguments["names"] for task in drawn}) == 5
    assert all(pool.task(task.task_id) in TASKS for task in drawn)

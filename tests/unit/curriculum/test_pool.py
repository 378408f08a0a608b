import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.config import CurriculumConfig
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


def test_refresh_keeps_tasks_inside_the_band_if_there_are_any():
    assert set(_pool().kept_ids()) == MIDDLE
    assert _pool(enabled=False).num_kept == 20
    pool = TaskPool(TASKS, CurriculumConfig(pass_rate_band=(0.4, 0.6)))
    assert set(_drawn_ids(pool, 20)) == set(IDS), "before the first refresh"
    for task_id in IDS:
        pool.observe(task_id, attempts=8, successes=0)
    pool.refresh()
    assert pool.num_kept == 20, "an empty band"


def test_tasks_come_from_the_band_except_the_exploring_share():
    pool = _pool(explore_share=0.2)
    inside = sum(_drawn_ids(pool, 1, seed=seed)[0] in MIDDLE for seed in range(1000))
    assert 750 < inside < 850
    drawn = _drawn_ids(_pool(explore_share=0), 14)
    assert set(drawn[:10]) == MIDDLE
    assert len(set(drawn)) == 14, "an exhausted band is filled up from the rest"


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


def test_tasks_or_patterns_are_drawn_alike_whatever_their_size():
    assert _shares(_pattern_pool("uniform"))["never"] == pytest.approx(0.6, abs=0.08)
    assert list(_shares(_pattern_pool("patterns")).values()) == pytest.approx([0.25] * 4, abs=0.08)


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
    drawn = {task_id for seed in range(50) for task_id in _drawn_ids(pool, 3, seed=seed)}
    assert {one for one in drawn if not one.startswith("once")} <= {
        f"sometimes{number}" for number in range(0, 9, 2)
    }


@pytest.mark.parametrize("draw", ["uniform", "kinds", "patterns", "predicted", "frontier"])
def test_every_rule_draws_each_task_once_until_none_is_left(draw):
    pool = _pattern_pool(draw)
    pool.add([make_task("later", pattern="later(C)")])
    gone = {task.task_id for task in ALIKE[:20]}
    drawn = _drawn_ids(pool, 100, without=gone)
    assert sorted(drawn) == sorted(({t.task_id for t in ALIKE} | {"later"}) - gone)


@pytest.mark.parametrize("draw", ["band", "predicted", "frontier"])
def test_a_restored_pool_predicts_and_draws_as_the_unbroken_one(draw):
    unbroken = _pattern_pool(draw, explore_share=0.1)
    unbroken.observe("sometimes4", attempts=8, successes=8)  # known, but not sorted anew yet
    resumed = TaskPool(ALIKE, CurriculumConfig(draw=draw, explore_share=0.1))
    resumed.restore(json.loads(json.dumps(unbroken.state())), unbroken.kept_ids())
    for pool in (unbroken, resumed):
        pool.observe("sometimes2", attempts=4, successes=4)
    assert _drawn_ids(resumed, 30) == _drawn_ids(unbroken, 30)
    assert resumed.estimates() == unbroken.estimates()
    unbroken.refresh()
    resumed.refresh()
    assert resumed.kept_ids() == unbroken.kept_ids()


def test_a_pool_may_predict_and_draw_all_tasks_alike():
    pool = TaskPool(ALIKE, CurriculumConfig(enabled=False), reward_span=(-1, 1))
    for number in range(30):
        pool.observe(f"always{number}", attempts=1, successes=1)
        pool.observe(f"never{number}", attempts=1, successes=0)
    assert -1 <= pool.predicted_reward("never40") < -0.4 < pool.predicted_reward("once0") < 1
    assert _shares(pool)["never"] == pytest.approx(0.6, abs=0.08)


def test_drawn_tasks_get_other_names():
    def rename(task, rng):
        return task.model_copy(update={"arguments": {"names": rng.random()}})

    pool = TaskPool(TASKS, CurriculumConfig(), rename=rename)
    drawn, again = (pool.draw(5, random.Random(0)) for _ in range(2))
    assert drawn == again
    assert len({task.arguments["names"] for task in drawn}) == 5
    assert all(pool.task(task.task_id) in TASKS for task in drawn)


def test_a_quarantined_task_is_not_drawn_until_released():
    pool = TaskPool([make_task(name) for name in "abc"], CurriculumConfig())
    rng = random.Random(0)
    assert pool.quarantine(["a"])
    assert {task.task_id for task in pool.draw(3, rng)} == {"b", "c"}
    assert pool.quarantine([])
    assert len(pool.draw(3, rng)) == 3


def test_a_quarantine_that_leaves_one_task_is_refused():
    pool = TaskPool([make_task(name) for name in "abc"], CurriculumConfig())
    assert not pool.quarantine(["a", "b"])
    assert len(pool.draw(3, random.Random(0))) == 3


def test_a_widened_pool_draws_all_tasks_until_narrowed():
    config = CurriculumConfig(pass_rate_band=(0.2, 0.8))
    pool = TaskPool([make_task(name) for name in "abc"], config)
    assert not pool.widen()
    pool.narrow()
    for name, successes in zip("abc", (0, 4, 8), strict=True):
        pool.observe(name, attempts=8, successes=successes)
    pool.refresh()
    assert pool.kept_ids() == ["b"]
    assert pool.widen()
    assert pool.kept_ids() == ["a", "b", "c"]
    pool.narrow()
    assert pool.kept_ids() == ["b"]

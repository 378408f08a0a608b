import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.curriculum.prediction import (
    Description,
    PassRatePredictor,
    mixed_chance,
    undescribed,
)
from tests.factories.records import make_task

TASKS = [
    make_task(f"t{number}", pattern="easy(C)" if number % 2 else "hard(C)", hops=1 + number % 2)
    for number in range(40)
]


def _predictor(groups=30, tasks=TASKS):
    """Tasks of odd numbers are nearly always solved, the others nearly never."""
    predictor = PassRatePredictor(tasks)
    for number in range(groups):
        is_easy = number % 2
        predictor.observe(f"t{number}", attempts=4, successes=4 if is_easy else 0)
    return predictor


def test_a_fair_task_is_mixed_unless_all_agree():
    # a Beta with large parameters is a known rate: 1 - 2 * (1/2)^4
    [chance] = mixed_chance(np.array([5e8]), np.array([5e8]), 4)
    assert chance == pytest.approx(0.875, abs=1e-6)


def test_an_unknown_task_is_mixed_by_polyas_urn():
    # uniform prior: each number of successes of 0..n is as likely as another (Laplace)
    [chance] = mixed_chance(np.array([1.0]), np.array([1.0]), 4)
    assert chance == pytest.approx(1 - 2 / 5)


@given(
    rate=st.floats(0.001, 0.999),
    attempts=st.floats(0.5, 100),
    rollouts=st.integers(2, 16),
)
@settings(max_examples=100, deadline=None)
def test_the_chance_is_one_and_more_rollouts_raise_it(rate, attempts, rollouts):
    wins_N, losses_N = np.array([rate * attempts]), np.array([(1 - rate) * attempts])
    [fewer] = mixed_chance(wins_N, losses_N, rollouts)
    [more] = mixed_chance(wins_N, losses_N, rollouts + 1)
    assert 0 <= fewer <= more <= 1


def test_untried_tasks_are_predicted_by_what_they_share():
    rates = _predictor().rates()
    assert rates["t39"] > 0.8
    assert rates["t38"] < 0.2


def test_a_task_is_told_apart_from_others_of_its_pattern():
    predictor = _predictor()
    before = predictor.rates()
    predictor.observe("t39", attempts=16, successes=1)
    after = predictor.rates()
    assert after["t39"] < 0.3
    assert after["t37"] > 0.7, "one odd task says little of its pattern"
    assert after["t37"] < before["t37"]


def test_older_groups_count_less():
    predictor = _predictor()
    for _ in range(150):  # the policy has moved: what was hard is solved by now
        for number in range(0, 20, 2):
            predictor.observe(f"t{number}", attempts=4, successes=4)
    assert predictor.rates()["t38"] > 0.6


@pytest.mark.parametrize("size", [1, 4, 16])
def test_memory_counts_attempts_whatever_the_groups(size):
    predictor = PassRatePredictor(TASKS)
    for start in range(0, 16, size):  # twelve successes, then four failures
        successes = sum(n < 12 for n in range(start, start + size))
        predictor.observe("t0", attempts=size, successes=successes)
    assert predictor.rate("t0") == pytest.approx(0.68, abs=0.1)


def test_attempts_at_other_tasks_age_one_whatever_the_groups():
    aged = {}
    for size in (1, 16):
        predictor = PassRatePredictor(TASKS)
        predictor.observe("t0", attempts=16, successes=16)
        for group in range(3200 // size):
            predictor.observe(f"t{1 + group % 39}", attempts=size, successes=0.5 * size)
        wins_N, losses_N = predictor.posteriors()
        aged[size] = float(wins_N[0] + losses_N[0])
    assert aged[1] == pytest.approx(aged[16]) == pytest.approx(3 + 16 * 0.5**0.5)


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.9, 0.95])
def test_single_outcomes_draw_no_rate_to_its_end(rate):
    dice, predictor = random.Random(0), PassRatePredictor(TASKS)
    late = []
    for draw in range(4000):
        predictor.observe(f"t{draw % 30}", attempts=1, successes=int(dice.random() < rate))
        if draw >= 2000:
            late.append(predictor.rate("t38"))  # never tried: the regression alone
    assert np.mean(late) == pytest.approx(rate, abs=0.03)


def test_numbers_of_a_task_are_features():
    tasks = [make_task(f"t{n}", gold=("x" * (1 + 10 * (n % 2)),)) for n in range(40)]
    rates = _predictor(tasks=tasks).rates()
    assert rates["t39"] > rates["t38"] + 0.3


def test_what_a_family_says_of_a_task_is_a_feature():
    tasks = [make_task(f"t{n}", hops=1) for n in range(40)]
    kinds = {task.task_id: str(n % 2) for n, task in enumerate(tasks)}
    predictor = PassRatePredictor(tasks, lambda t: Description({"kind": kinds[t.task_id]}, ()))
    for number in range(30):
        predictor.observe(f"t{number}", attempts=4, successes=4 * (number % 2))
    assert predictor.rates()["t39"] > predictor.rates()["t38"] + 0.3
    assert undescribed(tasks[0]) == Description({"steps": "1"}, ())


def test_a_restored_predictor_goes_on_as_the_unbroken_one():
    unbroken = _predictor(groups=20)
    resumed = PassRatePredictor(TASKS)
    resumed.restore(json.loads(json.dumps(unbroken.state())))
    for predictor in (unbroken, resumed):
        predictor.observe("t21", attempts=16, successes=3)
    for rng in (None, 7):
        pairs = (
            one.posteriors(None if rng is None else random.Random(rng))
            for one in (unbroken, resumed)
        )
        (wins_N, losses_N), (other_wins_N, other_losses_N) = pairs
        assert (wins_N == other_wins_N).all()
        assert (losses_N == other_losses_N).all()
    assert (unbroken.untried() == resumed.untried()).all()


def test_tasks_that_come_later_are_predicted_too():
    predictor = _predictor(tasks=TASKS[:30])
    predictor.add(TASKS[30:])
    assert list(predictor.rates()) == predictor.task_ids == [task.task_id for task in TASKS]
    assert predictor.rates()["t39"] > 0.8
    predictor.observe("t39", attempts=4, successes=0)
    assert not predictor.untried()[39]


def test_the_rate_of_one_task_is_that_among_all():
    predictor = PassRatePredictor(TASKS)
    predictor.observe(TASKS[0].task_id, attempts=4, successes=3)
    rates = predictor.rates()
    assert all(predictor.rate(task_id) == pytest.approx(rate) for task_id, rate in rates.items())
    assert rates[TASKS[0].task_id] > 0.5


def test_a_group_without_attempts_changes_nothing():
    predictor = _predictor()
    before = predictor.state()
    predictor.observe("t39", attempts=0, successes=0)
    assert predictor.state() == before


@given(st.lists(st.tuples(st.integers(0, 39), st.integers(1, 16), st.floats(0, 1)), max_size=200))
@settings(max_examples=30, deadline=None)
def test_no_history_leads_to_a_rate_outside_its_range(groups):
    predictor = PassRatePredictor(TASKS)
    for number, attempts, share in groups:
        predictor.observe(f"t{number}", attempts=attempts, successes=round(share * attempts))
    assert all(0 < rate < 1 for rate in predictor.rates().values())

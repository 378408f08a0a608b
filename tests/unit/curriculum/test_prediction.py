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


def _predictor(groups=30, tasks=TASKS, describe=undescribed):
    """Tasks of odd numbers are nearly always solved, the others nearly never."""
    predictor = PassRatePredictor(tasks, describe)
    for number in range(groups):
        predictor.observe(f"t{number}", attempts=4, successes=4 * (number % 2))
    return predictor


@pytest.mark.parametrize(
    ("parameter", "chance"),
    [
        (5e8, 1 - 2 / 2**4),  # a Beta with large parameters is a known rate
        (1.0, 1 - 2 / 5),  # uniform prior: each number of successes is as likely (Laplace)
    ],
)
def test_a_task_is_mixed_unless_all_agree(parameter, chance):
    parameters = np.array([parameter])
    [found] = mixed_chance(parameters, parameters, 4)
    assert found == pytest.approx(chance, abs=1e-6)


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


@pytest.mark.parametrize("rate", [0.05, 0.95])
def test_single_outcomes_draw_no_rate_to_its_end(rate):
    dice, predictor = random.Random(0), PassRatePredictor(TASKS)
    late = []
    for draw in range(4000):
        predictor.observe(f"t{draw % 30}", attempts=1, successes=int(dice.random() < rate))
        if draw >= 2000:
            late.append(predictor.rate("t38"))  # never tried: the regression alone
    assert np.mean(late) == pytest.approx(rate, abs=0.03)


@pytest.mark.parametrize(
    ("tasks", "describe"),
    [
        (TASKS, undescribed),
        ([make_task(f"t{n}", gold=("x" * (1 + 10 * (n % 2)),)) for n in range(40)], undescribed),
        (
            [make_task(f"t{n}", hops=1) for n in range(40)],
            lambda task: Description({"kind": str(int(task.task_id[1:]) % 2)}, ()),
        ),
    ],
    ids=["pattern and steps", "length of the answer", "said by the family"],
)
def test_untried_tasks_are_predicted_by_what_they_share(tasks, describe):
    rates = _predictor(tasks=tasks, describe=describe).rates()
    assert rates["t39"] > rates["t38"] + 0.3


def test_a_restored_predictor_goes_on_as_the_unbroken_one():
    unbroken, resumed = _predictor(groups=20), PassRatePredictor(TASKS)
    resumed.restore(json.loads(json.dumps(unbroken.state())))
    before = resumed.state()
    resumed.observe("t39", attempts=0, successes=0)
    assert resumed.state() == before, "a group without attempts changes nothing"
    for predictor in (unbroken, resumed):
        predictor.observe("t21", attempts=16, successes=3)
    for rng in (lambda: None, lambda: random.Random(7)):
        for ours, theirs in zip(resumed.posteriors(rng()), unbroken.posteriors(rng()), strict=True):
            assert (ours == theirs).all()
    assert (unbroken.untried() == resumed.untried()).all()


def test_tasks_that_come_later_are_predicted_too():
    predictor = _predictor(tasks=TASKS[:30])
    predictor.add(TASKS[30:])
    rates = predictor.rates()
    assert list(rates) == predictor.task_ids == [task.task_id for task in TASKS]
    assert rates["t39"] > 0.8
    assert all(predictor.rate(task_id) == pytest.approx(rate) for task_id, rate in rates.items())
    predictor.observe("t39", attempts=4, successes=0)
    assert not predictor.untried()[39]


@given(st.lists(st.tuples(st.integers(0, 39), st.integers(1, 16), st.floats(0, 1)), max_size=200))
@settings(max_examples=30, deadline=None)
def test_no_history_leads_to_a_rate_outside_its_range(groups):
    predictor = PassRatePredictor(TASKS)
    for number, attempts, share in groups:
        predictor.observe(f"t{number}", attempts=attempts, successes=round(share * attempts))
    assert all(0 < rate < 1 for rate in predictor.rates().values())

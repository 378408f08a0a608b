"""Self-play's rewards and filters against R-Zero's and Absolute Zero's public code."""

import math
import random
from collections import Counter
from typing import get_args

import pytest

from espalier.config import AbsoluteZeroConfig, CurriculumConfig, RZeroConfig
from espalier.curriculum.learnability import (
    LEARNABILITY,
    Preference,
    absolute_zero_code,
    keep_learnable,
    r_zero,
)
from espalier.curriculum.pool import TaskPool
from espalier.curriculum.self_play import challenger_rewards, judge_trials
from espalier.environments.proposals import Trial
from tests.golden_cases import golden_cases

from .test_pool import IDS, TASKS

CASES = {case["name"]: case for case in golden_cases("filters")}


def test_r_zeros_reward_is_twice_its_codes():
    case = CASES["rzero_questioner/score_grid"]
    paid = [score["overall"] for score in case["expected"]["scores"]]
    ours = [r_zero(rate) / 2 for rate in case["inputs"]["solver_scores"]]
    assert ours == pytest.approx(paid, rel=1e-7, abs=1e-8)


def test_a_proposers_reward_without_repetition_equals_r_zeros_code():
    case = CASES["rzero_questioner/score_grid"]
    rates = case["inputs"]["solver_scores"]
    trials = [Trial(TASKS[0], 100, round(100 * rate)) for rate in rates]
    config = RZeroConfig(reward="r_zero_code", repetition_weight=0.0)
    paid = [score["overall"] for score in case["expected"]["scores"]]
    assert challenger_rewards(trials, config) == pytest.approx(paid, rel=1e-7, abs=1e-8)


@pytest.mark.parametrize(
    ("name", "preference"),
    [("one_minus", "absolute_zero_code"), ("inverse", "absolute_zero")],
)
def test_absolute_zeros_reward_is_that_of_its_code(name, preference):
    case = CASES[f"azr_learnability/{name}"]
    ours = [LEARNABILITY[preference](rate) for rate in case["inputs"]["solver_accuracy"]]
    assert ours == pytest.approx(case["expected"]["reward"], rel=1e-7, abs=1e-8)


def test_the_band_keeps_what_r_zeros_difficulty_filter_keeps():
    case = CASES["rzero_difficulty_filter/bounds"]
    # a task without an answer cannot be made, so that only the scores are left to judge by
    items = [item for item in case["inputs"]["items"] if item["answer"] not in ("", "None")]
    rates = {task.task_id: item["score"] for task, item in zip(TASKS, items, strict=False)}
    names = {task.task_id: item["question"] for task, item in zip(TASKS, items, strict=False)}
    band = (case["params"]["min_score"], case["params"]["max_score"])
    kept = keep_learnable(TASKS[: len(items)], rates, band)
    assert [names[task.task_id] for task in kept] == case["expected"]["kept_questions"]


@pytest.mark.parametrize(
    ("name", "band"),
    [
        ("all", (0.0, 1.0)),
        ("non_one", (0.0, math.nextafter(1, 0))),
        ("non_extremes", (math.nextafter(0, 1), math.nextafter(1, 0))),
    ],
)
def test_bands_keep_what_absolute_zeros_program_filters_keep(name, band):
    case = CASES[f"azr_valid_program_filter/{name}"]
    rates = case["inputs"]["solver_accuracy"]
    tasks = TASKS[: len(rates)]
    kept = keep_learnable(tasks, {t.task_id: r for t, r in zip(tasks, rates, strict=True)}, band)
    assert [tasks.index(task) for task in kept] == case["expected"]["kept"]


@pytest.mark.parametrize("name", ["all", "non_one", "non_extremes"])
def test_triples_are_kept_as_absolute_zeros_program_filters_keep_them(name):
    case = CASES[f"azr_valid_program_filter/{name}"]
    trials = [Trial(TASKS[0], 8, round(8 * rate)) for rate in case["inputs"]["solver_accuracy"]]
    verdicts = judge_trials(trials, AbsoluteZeroConfig(kept=name))
    kept = [place for place, verdict in enumerate(verdicts) if not verdict.fault]
    assert kept == case["expected"]["kept"]


@pytest.mark.parametrize(
    ("name", "reward"), [("one_minus", "absolute_zero_code"), ("inverse", "absolute_zero")]
)
def test_the_proposer_of_triples_gets_absolute_zeros_reward(name, reward):
    case = CASES[f"azr_learnability/{name}"]
    trials = [Trial(TASKS[0], 8, round(8 * rate)) for rate in case["inputs"]["solver_accuracy"]]
    verdicts = judge_trials(trials, AbsoluteZeroConfig(reward=reward))
    earned = [verdict.reward for verdict in verdicts]
    assert earned == pytest.approx(case["expected"]["reward"], rel=1e-7, abs=1e-8)


def test_every_preference_of_the_profile_has_a_rule():
    assert set(LEARNABILITY) == set(get_args(Preference))
    field = CurriculumConfig.model_fields["preference"]
    assert set(get_args(field.annotation)) == set(LEARNABILITY)


def _pool(preference):
    """Of twenty tasks all kept, five were solved never, ten every other time, five always."""
    pool = TaskPool(TASKS, CurriculumConfig(pass_rate_band=(0.0, 1.0), preference=preference))
    for number, task_id in enumerate(IDS):
        successes = 0 if number < 5 else 50 if number < 15 else 100
        pool.observe(task_id, attempts=100, successes=successes)
    pool.refresh()
    return pool


def _first_draws(preference, draws=2000):
    pool, rng = _pool(preference), random.Random(0)
    counts = Counter(pool.draw(1, rng)[0].task_id for _ in range(draws))
    bands = (IDS[:5], IDS[5:15], IDS[15:])
    return [sum(counts[task_id] for task_id in ids) / len(ids) / draws for ids in bands]


def test_r_zero_prefers_tasks_that_are_solved_every_other_time():
    never, half, always = _first_draws("r_zero")
    assert half > 10 * max(never, always)


def test_absolute_zero_prefers_hard_tasks():
    never, half, always = _first_draws("absolute_zero")
    assert never == pytest.approx(2 * half, rel=0.25)
    assert half > 10 * always


def test_no_preference_draws_evenly():
    assert _first_draws("even") == pytest.approx([0.05] * 3, rel=0.2)


def test_tasks_without_weight_are_drawn_last_and_each_once():
    pool = _pool("r_zero")
    drawn = [task.task_id for task in pool.draw(20, random.Random(0))]
    assert sorted(drawn) == sorted(IDS)


def test_an_unsolved_task_has_no_value_in_the_public_code():
    assert absolute_zero_code(0.0) == 0.0
    assert absolute_zero_code(0.25) == 0.75

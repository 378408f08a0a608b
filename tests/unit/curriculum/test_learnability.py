"""Self-play's rewards and filters against R-Zero's and Absolute Zero's public code."""

import random
from collections import Counter

import pytest

from espalier.config import AbsoluteZeroConfig, CurriculumConfig, RZeroConfig
from espalier.curriculum.learnability import (
    LEARNABILITY,
    keep_learnable,
    r_zero,
)
from espalier.curriculum.pool import TaskPool
from espalier.curriculum.self_play import challenger_rewards, judge_trials
from espalier.environments.proposals import Trial
from tests.golden_cases import golden_cases

from .test_pool import IDS, TASKS

CASES = {case["name"]: case for case in golden_cases("filters")}


def test_r_zeros_rewards_are_those_of_its_code():
    case = CASES["rzero_questioner/score_grid"]
    paid = [score["overall"] for score in case["expected"]["scores"]]
    rates = case["inputs"]["solver_scores"]
    assert [r_zero(rate) / 2 for rate in rates] == pytest.approx(paid, rel=1e-7, abs=1e-8)
    trials = [Trial(TASKS[0], 100, round(100 * rate)) for rate in rates]
    config = RZeroConfig(reward="r_zero_code", repetition_weight=0.0)
    assert challenger_rewards(trials, config) == pytest.approx(paid, rel=1e-7, abs=1e-8)


@pytest.mark.parametrize(
    ("name", "reward"), [("one_minus", "absolute_zero_code"), ("inverse", "absolute_zero")]
)
def test_absolute_zeros_rewards_are_those_of_its_code(name, reward):
    case = CASES[f"azr_learnability/{name}"]
    rates = case["inputs"]["solver_accuracy"]
    expected = pytest.approx(case["expected"]["reward"], rel=1e-7, abs=1e-8)
    assert [LEARNABILITY[reward](rate) for rate in rates] == expected
    trials = [Trial(TASKS[0], 8, round(8 * rate)) for rate in rates]
    verdicts = judge_trials(trials, AbsoluteZeroConfig(reward=reward))
    assert [verdict.reward for verdict in verdicts] == expected


def test_the_band_keeps_what_r_zeros_difficulty_filter_keeps():
    case = CASES["rzero_difficulty_filter/bounds"]
    # a task without an answer cannot be made, so that only the scores are left to judge by
    items = [item for item in case["inputs"]["items"] if item["answer"] not in ("", "None")]
    asked = dict(zip(IDS, items, strict=False))
    rates = {task_id: item["score"] for task_id, item in asked.items()}
    band = (case["params"]["min_score"], case["params"]["max_score"])
    kept = keep_learnable(TASKS[: len(items)], rates, band)
    questions = [asked[task.task_id]["question"] for task in kept]
    assert questions == case["expected"]["kept_questions"]


@pytest.mark.parametrize("name", ["all", "non_one", "non_extremes"])
def test_triples_are_kept_as_absolute_zeros_program_filters_keep_them(name):
    case = CASES[f"azr_valid_program_filter/{name}"]
    trials = [Trial(TASKS[0], 8, round(8 * rate)) for rate in case["inputs"]["solver_accuracy"]]
    verdicts = judge_trials(trials, AbsoluteZeroConfig(kept=name))
    kept = [place for place, verdict in enumerate(verdicts) if not verdict.fault]
    assert kept == case["expected"]["kept"]


@pytest.mark.parametrize("preference", ["even", "r_zero", "absolute_zero"])
def test_preferred_tasks_are_drawn_more_often_and_all_once(preference):
    """Of twenty tasks all kept, five were solved never, ten every other time, five always."""
    pool = TaskPool(TASKS, CurriculumConfig(pass_rate_band=(0.0, 1.0), preference=preference))
    for number, task_id in enumerate(IDS):
        successes = 0 if number < 5 else 50 if number < 15 else 100
        pool.observe(task_id, attempts=100, successes=successes)
    pool.refresh()
    rng = random.Random(0)
    counts = Counter(pool.draw(1, rng)[0].task_id for _ in range(2000))
    bands = (IDS[:5], IDS[5:15], IDS[15:])
    never, half, always = (sum(counts[one] for one in ids) / len(ids) / 2000 for ids in bands)
    if preference == "even":
        assert [never, half, always] == pytest.approx([0.05] * 3, rel=0.2)
    elif preference == "r_zero":
        assert half > 10 * max(never, always)
    else:
        assert never == pytest.approx(2 * half, rel=0.25)
        assert half > 10 * always
    drawn = [task.task_id for task in pool.draw(20, random.Random(0))]
    assert sorted(drawn) == sorted(IDS), "tasks without weight come last"

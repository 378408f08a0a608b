"""Phases of self-play over a scripted proposer and a policy of known skill."""

import random
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.config import AbsoluteZeroConfig, CurriculumConfig, RZeroConfig, WebRLConfig
from espalier.curriculum.pool import TaskPool
from espalier.curriculum.self_play import SelfPlay, judge_trials
from espalier.environments.proposals import ProposedTasks, Trial
from tests.factories.records import make_trajectory

from .test_pool import IDS, TASKS, _task

RATES = {"easy": 4, "half": 2, "hard": 0}
"""Kind of a posed task -> successes in four attempts."""


def attempt(task_id, outcome):
    return make_trajectory(task_id, outcome=outcome)


class ScriptedProposer:
    """Poses as many tasks of drawn kinds as are asked for, and refuses one."""

    def __init__(self):
        self.orders = []

    def propose(self, order):
        self.orders.append(order)
        rng = random.Random(order.seed)
        kinds = [rng.choice(list(RATES)) for _ in range(order.num_tasks)]
        tasks = [_task(f"-{kind}-{order.seed}-{number}") for number, kind in enumerate(kinds)]
        return ProposedTasks(tasks, {"not_unique": 1})


def tried(tasks, step):
    del step
    return [Trial(task, 4, RATES[task.task_id.split("-")[1]]) for task in tasks]


def self_play(try_tasks=tried, rule=WebRLConfig, proposer=None, **changes):
    pool = TaskPool(TASKS, CurriculumConfig(pass_rate_band=(0.1, 0.9)))
    config = rule(**({"posed_tasks": 12} | changes))
    return SelfPlay(config, proposer or ScriptedProposer(), pool, try_tasks, seed=3), pool


def play(played, pool, steps):
    """Two tasks a step are drawn and tried; every third step ends a phase."""
    for step in steps:
        for task in pool.draw(2, random.Random(f"draw:{step}")):
            outcome = random.Random(f"{step}:{task.task_id}").choice((0.0, 1.0))
            pool.observe(task.task_id, attempts=1, successes=int(outcome))
            played.observe([attempt(task.task_id, outcome)])
        if step % 3 == 2:
            played.end_phase(step + 1)
            pool.refresh()


def test_unsolved_tasks_inspire_the_next_proposals():
    proposer = ScriptedProposer()
    played, _ = self_play(proposer=proposer)
    played.observe([attempt("t1", 0.0), attempt("t2", 0.0), attempt("t2", 1.0)])
    played.observe([attempt("t3", 1.0), attempt("t4", 0.0), attempt("t1", 0.0)])
    assert played.end_phase(1).failed == 2
    played.end_phase(2)
    first, second = proposer.orders
    assert [task.task_id for task in first.failed] == ["t1", "t4"]
    assert second.failed == []


def test_tasks_neither_too_hard_nor_too_easy_join_the_pool():
    played, pool = self_play()
    phase = played.end_phase(1)
    assert {task.task_id.split("-")[1] for task in played.tasks} == {"half"}
    assert pool.tasks == [*TASKS, *played.tasks]
    assert 0 < phase.kept < 12
    assert set(phase.refused) == {"not_unique", "too_easy", "too_hard"}
    assert phase.posed == 13 == phase.kept + sum(phase.refused.values())
    rates = pool.estimates()
    assert all(0.4 < rates[task.task_id] < 0.6 for task in played.tasks)


def test_a_trials_outcome_counts_for_the_band_at_once():
    played, pool = self_play(value_band=(0.0, 1.0))
    played.end_phase(1)
    pool.observe("t0", attempts=8, successes=4)
    pool.refresh()
    kept = {task_id.split("-")[1] for task_id in pool.kept_ids() if "-" in task_id}
    assert kept == {"half"}


def test_a_lost_environment_is_a_reason_of_refusal():
    def lost(tasks, step):
        return [trial._replace(attempts=0) for trial in tried(tasks, step)]

    played, pool = self_play(lost)
    phase = played.end_phase(1)
    assert phase.kept == 0
    assert phase.refused == {"environment_lost": 12, "not_unique": 1}
    assert pool.tasks == TASKS


def test_a_phases_line_has_its_figures():
    played, _ = self_play()
    played.observe([attempt("t1", 0.0)])
    phase = played.end_phase(20)
    line = phase.line()
    assert re.match("step 20: .* 1 .* 13", line)
    assert f"kept {phase.kept}" in line
    assert "too_easy" in line


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (0.0, "too_hard"),
        (0.05, ""),
        (0.5, ""),
        (0.75, ""),
        (0.76, "too_easy"),
        (float("nan"), "never_acted"),
    ],
)
def test_the_critics_value_is_judged_by_webrls_band(value, fault):
    [verdict] = judge_trials([Trial(TASKS[0], 1, 1, value)], WebRLConfig(value="critic"))
    assert verdict.fault == fault


@given(st.integers(0, 40), st.integers(1, 40))
def test_the_pass_rate_is_judged_by_webrls_band(successes, attempts):
    trial = Trial(TASKS[0], attempts, min(successes, attempts))
    [verdict] = judge_trials([trial], WebRLConfig())
    assert (verdict.fault == "") == (0.05 <= trial.pass_rate <= 0.75)


@pytest.mark.parametrize("rule", [WebRLConfig, RZeroConfig, AbsoluteZeroConfig])
@given(killed_after=st.integers(1, 11))
@settings(deadline=None, max_examples=11)
def test_a_resumed_run_proposes_and_draws_like_an_unbroken_one(rule, killed_after):
    unbroken, whole = self_play(rule=rule)
    play(unbroken, whole, range(12))
    broken, pool = self_play(rule=rule)
    play(broken, pool, range(killed_after))
    resumed, again = self_play(rule=rule)
    resumed.restore(broken.state(), broken.kept_ids())
    play(resumed, again, range(killed_after, 12))
    assert resumed.tasks == unbroken.tasks
    assert resumed.phases == unbroken.phases
    assert resumed.state() == unbroken.state()
    assert again.kept_ids() == whole.kept_ids()
    assert len(unbroken.phases) == 4


def test_proposed_tasks_are_drawn_like_any_other():
    played, pool = self_play()
    played.end_phase(1)
    pool.refresh()
    draws = Counter(pool.draw(1, random.Random(n))[0].task_id for n in range(2000))
    posed = [draws[task.task_id] for task in played.tasks]
    assert min(posed) > 0
    assert set(draws) == {*IDS, *(task.task_id for task in played.tasks)}


def posed_at(successes, question, attempts=4):
    message = TASKS[0].prompt[0].model_copy(update={"content": question})
    return Trial(TASKS[0].model_copy(update={"prompt": (message,)}), attempts, successes)


PHASE = [
    posed_at(2, "what is the capital of the country of Lyon ?"),
    posed_at(2, "what is the capital of the country of Nice ?"),
    posed_at(1, "name every currency that Peru has ever used ."),
    posed_at(4, "find the largest city of the state of Ohio ."),
    posed_at(0, "tell me which time zone counts for Rome now ."),
]
"""The first two are one cluster, two fifths of the phase; the others stand alone."""


def test_the_reward_is_uncertainty_less_repetition():
    verdicts = judge_trials(PHASE, RZeroConfig())
    assert [verdict.reward for verdict in verdicts] == pytest.approx([0.6, 0.6, 0.3, 0.0, 0.0])
    assert [verdict.fault for verdict in verdicts] == ["", "", "", "too_easy", "too_hard"]
    free = judge_trials(PHASE, RZeroConfig(repetition_weight=0.0))
    assert [verdict.reward for verdict in free] == pytest.approx([1.0, 1.0, 0.5, 0.0, 0.0])


def test_the_public_codes_reward_is_half_and_may_be_negative():
    verdicts = judge_trials(PHASE, RZeroConfig(reward="r_zero_code"))
    assert [verdict.reward for verdict in verdicts] == pytest.approx([0.1, 0.1, 0.05, -0.2, -0.2])


@given(st.integers(0, 16), st.integers(1, 16))
def test_r_zero_keeps_pass_rates_within_a_quarter_of_half(successes, attempts):
    trial = posed_at(min(successes, attempts), "any", attempts)
    [verdict] = judge_trials([trial], RZeroConfig())
    assert (verdict.fault == "") == (0.25 <= trial.pass_rate <= 0.75)


def test_the_next_order_has_mean_rewards_by_kind():
    proposer = ScriptedProposer()
    played, _ = self_play(rule=RZeroConfig, proposer=proposer, repetition_weight=0.0)
    first = played.end_phase(1)
    played.end_phase(2)
    earned = proposer.orders[1].earned
    # every scripted task has a pattern of its own
    assert {kind.split("-")[1]: reward for kind, reward in earned.items()} == {
        "easy": 0.0,
        "half": 1.0,
        "hard": 0.0,
    }
    assert first.reward == pytest.approx(sum(earned.values()) / 12)
    assert f"mean reward {first.reward:.2f}" in first.line()


def test_evolution_has_no_reward():
    proposer = ScriptedProposer()
    played, _ = self_play(proposer=proposer)
    phase = played.end_phase(1)
    played.end_phase(2)
    assert phase.reward is None
    assert "mean reward" not in phase.line()
    assert proposer.orders[1].earned == {}

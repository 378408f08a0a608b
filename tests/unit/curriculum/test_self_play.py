"""Phases of self-play over a scripted proposer and a policy of known skill."""

import random

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
    return [Trial(task, 4, RATES[task.task_id.split("-")[1]]) for task in tasks]


def self_play(try_tasks=tried, rule=WebRLConfig, proposer=None, **changes):
    pool = TaskPool(TASKS, CurriculumConfig(pass_rate_band=(0.1, 0.9)))
    config = rule(**({"posed_tasks": 12} | changes))
    return SelfPlay(config, proposer or ScriptedProposer(), pool, try_tasks, seed=3), pool


def play(played, pool, steps):
    """Two tasks a step are drawn and tried; every third step ends a phase."""
    for step in steps:
        for task in pool.draw(2, random.Random(f"draw:{step}")):
            outcome = random.Random(f"{step}:{task.task_id}").choice((0, 1))
            pool.observe(task.task_id, attempts=1, successes=outcome)
            played.observe([make_trajectory(task.task_id, outcome=outcome)])
        if step % 3 == 2:
            played.end_phase(step + 1)
            pool.refresh()


def test_unsolved_tasks_inspire_the_next_proposals():
    proposer = ScriptedProposer()
    played, _ = self_play(proposer=proposer)
    for outcomes in ((("t1", 0), ("t2", 0), ("t2", 1)), (("t3", 1), ("t4", 0), ("t1", 0))):
        played.observe([make_trajectory(name, outcome=float(right)) for name, right in outcomes])
    phase = played.end_phase(1)
    assert (phase.failed, phase.reward) == (2, None)
    assert "too_easy" in phase.line()
    played.end_phase(2)
    first, second = proposer.orders
    assert [task.task_id for task in first.failed] == ["t1", "t4"]
    assert (second.failed, second.earned) == ([], {})


def test_tasks_neither_too_hard_nor_too_easy_join_the_pool():
    played, pool = self_play()
    phase = played.end_phase(1)
    assert {task.task_id.split("-")[1] for task in played.tasks} == {"half"}
    assert pool.tasks == [*TASKS, *played.tasks]
    assert 0 < phase.kept < 12
    assert set(phase.refused) == {"not_unique", "too_easy", "too_hard"}
    assert phase.posed == 13 == phase.kept + sum(phase.refused.values())
    rates = pool.estimates()  # a trial's outcome counts at once
    assert all(0.4 < rates[task.task_id] < 0.6 for task in played.tasks)
    pool.refresh()
    drawn = {pool.draw(1, random.Random(n))[0].task_id for n in range(2000)}
    assert drawn == {*IDS, *(task.task_id for task in played.tasks)}


def test_a_lost_environment_is_a_reason_of_refusal():
    played, pool = self_play(lambda tasks, step: [Trial(task, 0, 0) for task in tasks])
    phase = played.end_phase(1)
    assert (phase.kept, pool.tasks) == (0, TASKS)
    assert phase.refused == {"environment_lost": 12, "not_unique": 1}


@pytest.mark.parametrize(
    ("value", "fault"),
    [(0.04, "too_hard"), (0.05, ""), (0.75, ""), (0.76, "too_easy"), (float("nan"), "never_acted")],
)
def test_the_critics_value_is_judged_by_webrls_band(value, fault):
    [verdict] = judge_trials([Trial(TASKS[0], 1, 1, value)], WebRLConfig(value="critic"))
    assert verdict.fault == fault


@pytest.mark.parametrize(("rule", "low"), [(WebRLConfig, 0.05), (RZeroConfig, 0.25)])
@given(successes=st.integers(0, 40), attempts=st.integers(1, 40))
def test_the_pass_rate_is_judged_by_the_rules_band(rule, low, successes, attempts):
    trial = Trial(TASKS[0], attempts, min(successes, attempts))
    [verdict] = judge_trials([trial], rule())
    assert (verdict.fault == "") == (low <= trial.pass_rate <= 0.75)


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


def posed_at(successes, question):
    message = TASKS[0].prompt[0].model_copy(update={"content": question})
    return Trial(TASKS[0].model_copy(update={"prompt": (message,)}), 4, successes)


PHASE = [
    posed_at(2, "what is the capital of the country of Lyon ?"),
    posed_at(2, "what is the capital of the country of Nice ?"),
    posed_at(1, "name every currency that Peru has ever used ."),
    posed_at(4, "find the largest city of the state of Ohio ."),
    posed_at(0, "tell me which time zone counts for Rome now ."),
]
"""The first two are one cluster, two fifths of the phase; the others stand alone."""


@pytest.mark.parametrize(
    ("settings_", "rewards"),
    [
        ({}, [0.6, 0.6, 0.3, 0.0, 0.0]),
        ({"repetition_weight": 0.0}, [1.0, 1.0, 0.5, 0.0, 0.0]),
        # the public code's reward is half, and may be negative
        ({"reward": "r_zero_code"}, [0.1, 0.1, 0.05, -0.2, -0.2]),
    ],
)
def test_the_reward_is_uncertainty_less_repetition(settings_, rewards):
    verdicts = judge_trials(PHASE, RZeroConfig(**settings_))
    assert [verdict.reward for verdict in verdicts] == pytest.approx(rewards)
    assert [verdict.fault for verdict in verdicts] == ["", "", "", "too_easy", "too_hard"]


def test_the_next_order_has_mean_rewards_by_kind():
    proposer = ScriptedProposer()
    played, _ = self_play(rule=RZeroConfig, proposer=proposer, repetition_weight=0.0)
    first = played.end_phase(1)
    played.end_phase(2)
    earned = proposer.orders[1].earned
    # every scripted task has a pattern of its own
    by_kind = {kind.split("-")[1]: reward for kind, reward in earned.items()}
    assert by_kind == {"easy": 0.0, "half": 1.0, "hard": 0.0}
    assert first.reward == pytest.approx(sum(earned.values()) / 12)

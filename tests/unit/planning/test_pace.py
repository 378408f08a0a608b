"""The simulation of samplers and learner, against sums by hand; and the plans that use it."""

import pytest

from espalier.config import Profile
from espalier.planning import Limits, PlanOrder, make_plan, pace, plan_text
from espalier.planning.machine import Machine
from espalier.planning.pace import Attempts, Learner, Samplers, simulated

ONE = Samplers(servers=1, rows=4, step_s=0.1, row_s=0.01)
LEARNER = Learner(update_s=0.5, token_s=0.01, exchange_s=0.3)
FOUR = Attempts(groups=2, group_size=2, action_tokens=20.0, trained_tokens=40.0)
MANY = Attempts(groups=8, group_size=8, action_tokens=50.0, trained_tokens=100.0, tool_s=0.2)


@pytest.fixture
def two_even_turns(monkeypatch):
    """Every attempt has two turns of ten tokens."""
    monkeypatch.setattr(pace, "_TURNS", (2,))
    monkeypatch.setattr(pace, "_MEAN_TURNS", 2.0)
    monkeypatch.setattr(pace, "_LENGTHS", (1.0,) * len(pace._SHARES))


def with_tools(attempts, tool_s):
    fields = {name: getattr(attempts, name) for name in attempts.__dataclass_fields__}
    return Attempts(**fields | {"tool_s": tool_s, "tool_p99_s": tool_s})


@pytest.mark.usefixtures("two_even_turns")
def test_without_staleness_samplers_and_learner_alternate():
    found = simulated(ONE, LEARNER, with_tools(FOUR, 1.0), max_staleness=0)
    sampled_s, learnt_s = 20 * (0.1 + 4 * 0.01), 0.5 + 4 * 40 * 0.01
    assert found.step_s == pytest.approx(sampled_s + 1.0 + learnt_s + 0.3)
    assert found.learner_waits == pytest.approx(1 - learnt_s / found.step_s)
    assert found.samplers_idle == pytest.approx(1 - sampled_s / found.step_s)
    assert found.staleness == 0


@pytest.mark.usefixtures("two_even_turns")
def test_a_second_server_halves_rows_and_not_steps():
    two = Samplers(servers=2, rows=4, step_s=0.1, row_s=0.01)
    learner = Learner(update_s=0.0, token_s=0.0)
    one, both = (simulated(each, learner, FOUR, max_staleness=0).step_s for each in (ONE, two))
    assert (one, both) == (pytest.approx(20 * 0.14), pytest.approx(20 * 0.12))


@pytest.mark.usefixtures("two_even_turns")
def test_attempts_beyond_the_rows_wait_for_one():
    narrow = Samplers(servers=1, rows=2, step_s=0.1, row_s=0.01)
    learner = Learner(update_s=0.0, token_s=0.0)
    found = simulated(narrow, learner, FOUR, max_staleness=0)
    assert found.step_s == pytest.approx(2 * 20 * 0.12)


def test_a_slow_learner_never_waits_once_attempts_are_ahead():
    slow = Learner(update_s=100.0, token_s=0.0)
    found = simulated(ONE, slow, FOUR, max_staleness=1)
    assert found.step_s == pytest.approx(100.0)
    assert found.learner_waits == pytest.approx(0.0)
    assert found.staleness == 1


@pytest.mark.parametrize("bound", [1, 3])
def test_staleness_saves_time_and_stays_in_its_bound(bound):
    alternating, ahead = (
        simulated(Samplers(servers=8, rows=32, step_s=0.1), LEARNER, MANY, max_staleness=n)
        for n in (0, bound)
    )
    assert ahead.step_s < alternating.step_s
    assert ahead.step_s >= LEARNER.update_s
    assert 0 < ahead.staleness <= bound


@pytest.mark.parametrize("bound", [0, 1, 2, 5])
def test_no_attempt_is_older_than_the_bound(bound):
    """Long attempts are overtaken by later ones, and must not become too old by that."""
    fields = {name: getattr(MANY, name) for name in MANY.__dataclass_fields__} | {"tail": 1.5}
    pool = Samplers(servers=8, rows=64, step_s=0.1)
    found = simulated(pool, LEARNER, Attempts(**fields), max_staleness=bound)
    assert found.most_staleness == bound
    assert found.staleness <= bound


def test_a_long_tail_makes_the_learner_starve():
    fields = {name: getattr(MANY, name) for name in MANY.__dataclass_fields__}
    pool = Samplers(servers=8, rows=32, step_s=0.1)
    short, tailed = (
        simulated(pool, LEARNER, Attempts(**fields | {"tail": tail}), max_staleness=0)
        for tail in (0.0, 1.0)
    )
    assert tailed.learner_waits > short.learner_waits
    assert tailed.step_s > short.step_s


def test_the_seed_alone_decides():
    first, again, other = (
        simulated(ONE, LEARNER, MANY, max_staleness=2, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again != other


def profile(urls, **training):
    return Profile.model_validate(
        {
            "training": {"steps": 20, "tasks_per_step": 8, "group_size": 8, **training},
            "rollout": {"engine": "vllm", "vllm": {"urls": urls}},
        }
    )


def planned(profile):
    machine = Machine(cores=2, memory_mib=16_000.0, disk_mib=10_000.0, accelerator_mib=None)
    return make_plan(PlanOrder(profile=profile, machine=machine, limits=Limits()))


def test_a_plan_counts_what_further_servers_save():
    one, two, eight = (
        planned(profile([f"http://host-{n}:8000" for n in range(count)])) for count in (1, 2, 8)
    )
    seconds = [plan.needs.seconds for plan in (one, two, eight)]
    for stage in ("train", "evaluate"):
        took = [of[stage] for of in seconds]
        assert took == sorted(took, reverse=True)
        assert took[2] < 0.8 * took[0]
    assert "simulated: how 2 vLLM servers" in plan_text(two)
    assert "simulated" not in plan_text(one)


def test_a_plan_counts_what_rollout_workers_save():
    training = {"steps": 20, "tasks_per_step": 8, "group_size": 8}
    one, four = (
        planned(Profile.model_validate({"training": {**training, "rollout_workers": count}}))
        for count in (1, 4)
    )
    assert four.needs.seconds["train"] < one.needs.seconds["train"]
    assert four.needs.seconds["evaluate"] == one.needs.seconds["evaluate"]
    assert "simulated: how 4 rollout workers and the learner wait" in plan_text(four)


def test_a_run_far_ahead_is_planned_as_fast():
    training = {"steps": 20, "tasks_per_step": 8, "group_size": 8, "rollout_workers": 2}
    far, further = (
        planned(Profile.model_validate({"training": training | {"asynchronous": ahead}}))
        for ahead in ({"max_staleness": 32}, {"max_staleness": 10**6})
    )
    assert further.needs.seconds["train"] == pytest.approx(far.needs.seconds["train"], rel=0.05)
    nearer, ahead = (simulated(ONE, LEARNER, MANY, max_staleness=n).step_s for n in (16, 32))
    assert ahead == pytest.approx(nearer, rel=0.02)

import pytest

from espalier.config import CurriculumConfig
from tests.factories.rl_loops import (
    HOPELESS,
    IDLE,
    Listener,
    changed,
    rollout_threads,
    run_beside,
    run_loop,
    same_weights,
)
from tests.factories.training import PROFILE, Interrupted, InterruptingTracker, warm_policy

pytestmark = pytest.mark.slow

STEPS = PROFILE.training.steps


@pytest.mark.parametrize(
    "filters", [[], [{"name": "zero_variance"}]], ids=["equal rewards train", "are left out"]
)
@pytest.mark.parametrize("screening", [0, 4])
def test_a_run_that_gets_no_credit_stops(warm, tmp_path, filters, screening):
    profile = changed(**IDLE, algorithm={"filters": filters})
    profile = profile.model_copy(
        update={"curriculum": CurriculumConfig(screening_rollouts=screening)}
    )
    listener = Listener()
    loop, model = run_loop(warm, tmp_path, listener, profile=profile, tasks=HOPELESS)
    assert [row["idle_steps"] for row in loop.history] == [1, 2, 3]
    assert loop.best_step == 3  # of equal scores the latest
    assert same_weights(model, warm_policy(warm).model)
    [line] = listener.notes
    assert line.startswith("stopped after step 3 of 6: no trajectory got credit in 3 steps")
    assert "out of reach" in line
    assert "training.stop_after_idle_steps=3" in line


def test_an_idle_stop_evaluates_and_keeps_the_best_weights(warm, tmp_path):
    scores = iter([0.1, 0.3, 0.2])
    profile = changed(**IDLE)
    loop, _ = run_loop(
        warm, tmp_path, profile=profile, tasks=HOPELESS, dev_score=lambda _: next(scores)
    )
    assert [row.get("dev_em") for row in loop.history] == [None, 0.3, 0.2]
    assert loop.best_step == 2


def test_a_stopped_run_is_not_trained_further_when_resumed(warm, tmp_path):
    profile = changed(**IDLE)
    stopped, _ = run_loop(warm, tmp_path, profile=profile, tasks=HOPELESS)
    listener = Listener()
    resumed, _ = run_loop(warm, tmp_path, listener, profile=profile, dev_score=None)
    assert resumed.history == stopped.history
    assert resumed.best_step == stopped.best_step
    assert resumed.last_step == stopped.last_step
    assert listener.notes[0].startswith("stopped after step 3 of 6")


def test_a_killed_idle_run_stops_where_an_unbroken_one_does(warm, tmp_path):
    profile = changed(**IDLE)
    unbroken, _ = run_loop(warm, tmp_path / "unbroken", profile=profile, tasks=HOPELESS)
    with pytest.raises(Interrupted):
        run_loop(warm, tmp_path / "broken", InterruptingTracker(2), profile=profile, tasks=HOPELESS)
    resumed, _ = run_loop(warm, tmp_path / "broken", profile=profile, tasks=HOPELESS)
    assert resumed.history == unbroken.history


def test_idle_steps_are_forgotten_by_one_with_credit(warm, tmp_path):
    loop, _ = run_loop(warm, tmp_path, profile=changed(stop_after_idle_steps=1))
    assert {row["idle_steps"] for row in loop.history} == {0}
    assert len(loop.history) == STEPS


def test_no_idle_step_stops_where_the_profile_says_never(warm, tmp_path):
    profile = changed(**IDLE | {"stop_after_idle_steps": 0})
    loop, _ = run_loop(warm, tmp_path, profile=profile, tasks=HOPELESS)
    assert len(loop.history) == 6


def test_an_idle_asynchronous_run_stops_too(warm, tmp_path):
    loop, _ = run_beside(warm, tmp_path, tasks=HOPELESS, **IDLE)
    assert loop.history[-1]["idle_steps"] == 3
    assert len(loop.history) < 6
    assert not rollout_threads()

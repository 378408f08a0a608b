import pytest

from espalier.config import CurriculumConfig
from tests.factories.rl_loops import (
    HOPELESS,
    IDLE,
    changed,
    rollout_threads,
    run_beside,
    run_loop,
    same_weights,
)
from tests.factories.tracking import Notes
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
    listener = Notes()
    loop, model = run_loop(warm, tmp_path, listener, profile=profile, tasks=HOPELESS)
    assert [row["idle_steps"] for row in loop.progress.history] == [1, 2, 3]
    assert loop.progress.best_step == 3  # of equal scores the latest
    assert same_weights(model, warm_policy(warm).model)
    [line] = listener.lines
    assert "step 3 of 6" in line
    assert "training.stop_after_idle_steps=3" in line


def test_a_killed_idle_run_stops_where_an_unbroken_one_does(warm, tmp_path):
    profile = changed(**IDLE)
    unbroken, _ = run_loop(warm, tmp_path / "unbroken", profile=profile, tasks=HOPELESS)
    with pytest.raises(Interrupted):
        run_loop(warm, tmp_path / "broken", InterruptingTracker(2), profile=profile, tasks=HOPELESS)
    resumed, _ = run_loop(warm, tmp_path / "broken", profile=profile, tasks=HOPELESS)
    assert resumed.progress.history == unbroken.progress.history


def test_no_idle_step_stops_where_the_profile_says_never(warm, tmp_path):
    profile = changed(**IDLE | {"stop_after_idle_steps": 0})
    loop, _ = run_loop(warm, tmp_path, profile=profile, tasks=HOPELESS)
    assert len(loop.progress.history) == 6


def test_an_idle_asynchronous_run_stops_too(warm, tmp_path):
    loop, _ = run_beside(warm, tmp_path, tasks=HOPELESS, **IDLE)
    assert loop.progress.history[-1]["idle_steps"] == 3
    assert len(loop.progress.history) < 6
    assert not rollout_threads()

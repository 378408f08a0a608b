import pytest

from espalier.config import Profile
from tests.factories.rl_loops import (
    changed,
    rollout_threads,
    run_beside,
    run_loop,
    same_weights,
)
from tests.factories.training import PROFILE, warm_policy

pytestmark = pytest.mark.slow

STEPS = PROFILE.training.steps


def test_there_is_signal_to_learn_from(unbroken):
    loop, _ = unbroken
    assert all(row["grad_norm"] > 0 for row in loop.progress.history)


def test_equal_seeds_give_equal_runs_and_others_do_not(unbroken, warm, tmp_path):
    one, _ = unbroken
    same, _ = run_loop(warm, tmp_path / "same")
    other, _ = run_loop(warm, tmp_path / "other", profile=PROFILE.model_copy(update={"seed": 1}))
    assert one.progress.history == same.progress.history
    assert one.progress.history != other.progress.history


def test_rollouts_are_counted_over_the_whole_run(unbroken):
    loop, _ = unbroken
    rollouts = [row["rollouts"] for row in loop.progress.history]
    grown = [after - before for before, after in zip([0, *rollouts], rollouts, strict=False)]
    assert all(count > 0 for count in grown)
    assert grown[-1] == len(loop.progress.last_step)


def test_trajectories_carry_the_version_of_the_policy_that_sampled_them(unbroken):
    loop, _ = unbroken
    assert {trajectory.policy_version for trajectory in loop.progress.last_step} == {STEPS - 1}


def test_a_kl_penalty_keeps_the_policy_near_its_reference(warm, tmp_path):
    def distance(model):
        pairs = zip(model.parameters(), warm_policy(warm).model.parameters(), strict=True)
        return sum(float((a - b).detach().square().sum()) for a, b in pairs) ** 0.5

    rising = iter(range(99))
    _, free = run_loop(warm, tmp_path / "free", dev_score=lambda _: next(rising))
    tied_profile = changed(algorithm={"kl": {"coefficient": 1.0}})
    _, tied = run_loop(
        warm, tmp_path / "tied", profile=tied_profile, dev_score=lambda _: next(rising)
    )
    assert 0 < distance(tied) < distance(free)


def test_no_training_step_leaves_the_warm_start(warm, tmp_path):
    loop, model = run_loop(warm, tmp_path, profile=changed(steps=0))
    assert loop.progress.history == []
    assert same_weights(model, warm_policy(warm).model)


@pytest.mark.parametrize(
    "exploration",
    [{"top_p": 0.7}, {"top_k": 3}, {"kind_epsilon": 0.4}, {"top_p": 0.9, "kind_epsilon": 0.2}],
    ids=["top-p", "top-k", "kinds", "both"],
)
def test_engine_and_trainer_agree_under_exploration(warm, tmp_path, exploration):
    values = PROFILE.model_dump() | {"rollout": {"exploration": exploration}}
    values["training"] |= {"steps": 2, "temperature": 1.3, "minibatches": 1}
    loop, _ = run_loop(warm, tmp_path, profile=Profile.model_validate(values))
    learned = [row for row in loop.progress.history if "mismatch_kl" in row]
    assert learned
    assert all(row["logprob_gap_max"] < 1e-3 for row in learned)


def test_asynchronous_rollouts_stay_within_the_staleness_bound(warm, tmp_path):
    rising = iter(range(9))
    loop, model = run_beside(warm, tmp_path, dev_score=lambda _: next(rising))
    assert len(loop.progress.history) == STEPS
    assert max(row["staleness_max"] for row in loop.progress.history if "staleness_max" in row) in (
        1,
        2,
    )
    assert all(row["mismatch_kl"] < 1e-6 for row in loop.progress.history if "mismatch_kl" in row)
    assert not same_weights(model, warm_policy(warm).model)
    assert not rollout_threads()

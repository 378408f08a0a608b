import pytest

from espalier.config import Profile
from espalier.planning.probe_figures import probe_figures
from espalier.planning.work import passes
from espalier.records import ArtifactError
from tests.factories.measured_run import SECONDS, episode, make_measured_run

SECTIONS = {
    "name": "own",
    "threads": 1,
    "training": {"steps": 2, "tasks_per_step": 8, "group_size": 8},
    "warm_start": {"steps": 30, "evaluate_every": 15},
    "synthesis": {"heldout_tasks": 200, "train_tasks": 2000},
}


def profile(**sections):
    return Profile.model_validate({**SECTIONS, **sections})


def figures_of(made, run_dir):
    return probe_figures(made, make_measured_run(run_dir, made))


def test_a_hardly_trained_policy_is_timed_by_its_own_tokens(tmp_path):
    asked = profile()
    found = figures_of(asked, tmp_path / "a")
    algorithm = asked.training.algorithm
    # 2 s for 2 steps of 400 positions; 18 s for 3 x 900 judged tokens
    assert found["update_token_s"] == pytest.approx(2 / (800 * passes(algorithm)))
    assert found["judged_token_s"] == pytest.approx(18 / 2700)
    # 12 tokens of each rollout, in 0.6 of the time
    written = 2 * 8 * 8 * 1.25 * 12
    assert found["rollout_token_s"] == pytest.approx(0.6 * (SECONDS["train"] - 1) / written)


def test_a_hardly_trained_policy_shares_what_a_trained_one_will(tmp_path):
    found = figures_of(profile(), tmp_path / "a")
    prompt = episode(0).turns[0].action_start / 30.0
    assert found["common_share"] == pytest.approx(prompt + 0.7 * (1 - prompt))
    # lengths are those of the teacher
    assert found["demonstration_tokens"] == found["episode_tokens"] == 30.0
    assert found["action_tokens"] == pytest.approx(0.4 * 30)


@pytest.mark.parametrize("text", ["{", "[]", '{"train": 5}', '{"train": {"seconds": [1]}}'])
def test_damaged_times_are_refused(tmp_path, text):
    run = make_measured_run(tmp_path / "cut", profile())
    (run / "timings.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"timings\.json"):
        probe_figures(profile(), run)

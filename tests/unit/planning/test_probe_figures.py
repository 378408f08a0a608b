import pytest

from espalier.config import Profile
from espalier.planning.probe_figures import probe_figures
from espalier.planning.work import passes
from espalier.records import ArtifactError
from tests.factories.measured_run import PEAKS_MIB, SECONDS, episode, make_measured_run

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


def test_lengths_are_those_of_the_teacher(tmp_path):
    found = figures_of(profile(), tmp_path / "a")
    assert found["demonstration_tokens"] == found["episode_tokens"] == 30.0
    assert found["action_tokens"] == pytest.approx(0.4 * 30)


def test_what_is_done_once_does_not_grow_with_the_tokens(tmp_path):
    found = figures_of(profile(), tmp_path / "a")
    tokens = profile().policy.prestage.steps * profile().policy.prestage.tokens_per_step
    assert found["prestage_token_s"] == 1 / 50_000
    assert found["tokenizer_s"] == pytest.approx(SECONDS["prepare_policy"] - 1 - tokens / 50_000)
    # three policies played 6 s each, and a second loaded them
    assert found["scoring_s"] == pytest.approx(SECONDS["evaluate"] - 1 - 18)


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


def test_pieces_that_the_allocator_keeps_show_in_the_peak(tmp_path):
    plain = figures_of(profile(), tmp_path / "a")
    higher = make_measured_run(tmp_path / "b", profile(), peaks_mib={**PEAKS_MIB, "train": 2100.0})
    assert probe_figures(profile(), higher)["unfragmented_mib"] < plain["unfragmented_mib"]
    assert plain["data_mib"] == 1010.0


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"train": 5}', '{"train": null}', '{"train": {"seconds": [1]}}']
)
def test_damaged_times_are_refused(tmp_path, text):
    run = make_measured_run(tmp_path / "cut", profile())
    (run / "timings.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"timings\.json"):
        probe_figures(profile(), run)


def test_a_run_that_did_not_train_says_nothing_of_it(tmp_path):
    asked = profile(training={**SECTIONS["training"], "steps": 0})
    found = figures_of(asked, tmp_path / "a")
    assert "rollout_token_s" not in found
    assert found["sft_token_s"] == pytest.approx(1 / 9000)

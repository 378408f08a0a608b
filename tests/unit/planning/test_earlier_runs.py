import pytest

from espalier.config import Profile
from espalier.planning import earlier_runs
from espalier.planning.earlier_runs import layers_for, read_run
from espalier.planning.figures import Compute
from espalier.planning.sizes import policy_size
from espalier.planning.work import passes
from tests.factories.measured_run import PEAKS_MIB, SECONDS, episode, make_measured_run

SECTIONS = {
    "name": "own",
    "threads": 1,
    "training": {"steps": 20, "tasks_per_step": 8, "group_size": 8},
    "warm_start": {"steps": 30, "evaluate_every": 15},
    "synthesis": {"heldout_tasks": 200, "train_tasks": 2000},
}


def profile(**sections):
    return Profile.model_validate({**SECTIONS, **sections})


def figures_of(made, run_dir):
    return read_run("own", made, run_dir).measured


def layers(asked, runs):
    size = policy_size(asked.policy)
    return layers_for(asked, runs, Compute(size.parameters, asked.threads))


def test_lengths_are_those_of_histories_and_episodes(tmp_path):
    found = figures_of(profile(), make_measured_run(tmp_path / "a", profile()))
    assert found["demonstration_tokens"] == 30.0
    assert found["action_tokens"] == 12.0
    assert found["rollouts_per_place"] == pytest.approx(1.25)
    # the last episodes have 28 tokens, 14 of them written
    assert found["episode_tokens"] == pytest.approx(28 * 12 / 14)


def test_what_is_done_once_does_not_grow_with_the_tokens(tmp_path):
    found = figures_of(profile(), make_measured_run(tmp_path / "a", profile()))
    tokens = profile().policy.prestage.steps * profile().policy.prestage.tokens_per_step
    assert found["prestage_token_s"] == 1 / 50_000
    assert found["tokenizer_s"] == pytest.approx(SECONDS["prepare_policy"] - 1 - tokens / 50_000)
    # three policies played 6 s each, and a second loaded them
    assert found["scoring_s"] == pytest.approx(SECONDS["evaluate"] - 1 - 18)


def test_a_run_that_stopped_early_counts_its_own_steps(tmp_path):
    found = figures_of(profile(), make_measured_run(tmp_path / "a", profile(), steps=12))
    assert found["rollouts_per_place"] == pytest.approx(1.25)


def test_a_policy_that_hardly_trained_lends_the_teachers_lengths(tmp_path):
    found = figures_of(profile(), make_measured_run(tmp_path / "a", profile(), steps=2))
    assert found["episode_tokens"] == 30.0
    assert 0 < found["action_tokens"] < 30
    assert "rollouts_per_place" not in found


def test_shared_beginnings_are_those_that_the_updates_forwarded_once(tmp_path):
    run = make_measured_run(tmp_path / "a", profile())
    # 0.4 positions a token, where each of 8 trajectories falls into one of 2 minibatches
    among = 1 - 2 * (1 - 0.5**8) / 8
    assert figures_of(profile(), run)["common_share"] == pytest.approx(0.6 / among)


def test_packed_updates_take_as_long_by_the_position(tmp_path):
    tree = figures_of(profile(), make_measured_run(tmp_path / "a", profile()))
    packed = figures_of(profile(), make_measured_run(tmp_path / "b", profile(), layout="packed"))
    assert tree["update_token_s"] == pytest.approx(packed["update_token_s"] / 0.4)


def test_a_hardly_trained_policy_is_timed_by_its_own_tokens(tmp_path):
    asked = profile()
    run = make_measured_run(tmp_path / "a", asked, steps=2)
    found = figures_of(asked, run)
    algorithm = asked.training.algorithm
    # 2 s for 2 steps of 400 positions; 18 s for 3 x 900 judged tokens
    assert found["update_token_s"] == pytest.approx(2 / (800 * passes(algorithm)))
    assert found["judged_token_s"] == pytest.approx(18 / 2700)
    # 12 tokens of each rollout, in 0.6 of the time
    written = 2 * 8 * 8 * 1.25 * 12
    assert found["rollout_token_s"] == pytest.approx(0.6 * (SECONDS["train"] - 1) / written)


def test_a_hardly_trained_policy_shares_what_a_trained_one_will(tmp_path):
    run = make_measured_run(tmp_path / "a", profile(), steps=2)
    prompt = episode(0).turns[0].action_start / 30.0
    found = figures_of(profile(), run)["common_share"]
    assert found == pytest.approx(prompt + 0.7 * (1 - prompt))


def test_pieces_that_the_allocator_keeps_show_in_the_peak(tmp_path):
    plain = figures_of(profile(), make_measured_run(tmp_path / "a", profile()))
    higher = make_measured_run(tmp_path / "b", profile(), peaks_mib={**PEAKS_MIB, "train": 2100.0})
    assert figures_of(profile(), higher)["unfragmented_mib"] < plain["unfragmented_mib"]
    assert plain["data_mib"] == 1010.0


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"train": 5}', '{"train": null}', '{"train": {"seconds": [1]}}']
)
def test_a_run_with_damaged_times_is_passed_over(tmp_path, text):
    run = make_measured_run(tmp_path / "cut", profile())
    (run / "timings.json").write_text(text)
    assert earlier_runs(tmp_path) == ([], ["cut"])


def test_runs_are_found_below_a_folder_and_broken_ones_named(tmp_path):
    make_measured_run(tmp_path / "good", profile())
    make_measured_run(tmp_path / "probes" / "short", profile(), steps=2)
    make_measured_run(tmp_path / "cut", profile())
    (tmp_path / "cut" / "accepted" / "manifest.json").write_text("{")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "profile.json").write_text('{"nothing_known": 3}')
    found = earlier_runs(tmp_path)
    assert {run.name for run in found.read} == {"good", "short"}
    assert set(found.passed_over) == {"cut", "old"}
    assert earlier_runs(tmp_path / "none") == ([], [])


def test_another_environment_lends_speed_and_no_lengths(tmp_path):
    make_measured_run(tmp_path / "a", profile())
    runs = earlier_runs(tmp_path).read
    ((_, own),) = layers(profile(seed=3), runs)
    ((_, other),) = layers(profile(environment={"name": "shop"}), runs)
    assert own["episode_tokens"] == pytest.approx(24.0)
    assert "episode_tokens" not in other
    assert other["update_token_s"] == own["update_token_s"]


def test_a_run_of_more_threads_was_faster(tmp_path):
    make_measured_run(tmp_path / "a", profile(threads=2))
    runs = earlier_runs(tmp_path).read
    ((_, on_two),) = layers(profile(threads=2), runs)
    ((_, on_one),) = layers(profile(threads=1), runs)
    assert on_one["update_token_s"] == pytest.approx(on_two["update_token_s"] * 2**0.68)
    assert on_one["ingest_s"] == on_two["ingest_s"] == SECONDS["ingest"]

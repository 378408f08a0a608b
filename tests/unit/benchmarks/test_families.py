"""The learning benchmark of any family: what it counts, what it refuses, what it prints."""

import argparse
import json

import pytest

from tests.benchmarks.arms import asked, gain_over_seeds, together
from tests.benchmarks.families import Arm, kept_result, paid_by, profile_of, report
from tests.benchmarks.keeping import commit, keep
from tests.benchmarks.recipes import RECIPES


def options_for(out, **changed):
    given = {"out": out, "profile": "customer_service", "set": [], "dialect": [], "seeds": 1}
    return argparse.Namespace(**{**given, "any_commit": False, "again": False, **changed})


def result(before, after, tasks=600):
    """A finished arm in which `before` and `after` of the tasks were right."""
    right = {
        "untrained": [False] * tasks,
        "warm_start": [place < before for place in range(tasks)],
        "trained": [place < after for place in range(tasks)],
    }
    return {
        "em": {name: sum(values) / tasks for name, values in right.items()},
        "gain": {"em": (after - before) / tasks, "ci95": [0.0, 1.0]},
        "right": right,
        "token_drift": 0,
        "compared_turns": 9,
        "best_step": 20,
        "timings": {"train": {"seconds": 90.0}, "evaluate": {"seconds": 30.0}},
    }


def keep_result(options, arm, found, *, at=None):
    folder = options.out / options.profile
    folder.mkdir(parents=True, exist_ok=True)
    origin = {"commit": at or commit()}
    keep(folder / f"{arm.name}.json", asked(profile_of(arm, options)), [found], origin)


def test_every_profile_is_judged_on_five_hundred_tasks_or_more(tmp_path):
    few = options_for(tmp_path, set=["synthesis.heldout_tasks=20"])
    assert profile_of(Arm(0), few).synthesis.heldout_tasks == 500
    many = options_for(tmp_path, set=["synthesis.heldout_tasks=700"])
    assert profile_of(Arm(3), many).synthesis.heldout_tasks == 700
    assert profile_of(Arm(3, "tags"), many).seed == 3
    assert profile_of(Arm(3, "tags"), many).policy.dialect == "tags"


def test_the_last_line_has_the_gain_of_all_seeds(tmp_path, capsys):
    options = options_for(tmp_path, seeds=2)
    keep_result(options, Arm(0), result(120, 180))
    keep_result(options, Arm(1), result(240, 360))
    report([Arm(0), Arm(1)], options)
    *table, last = capsys.readouterr().out.splitlines()
    figures = json.loads(last)["gain"]
    assert figures["gain"][0] == pytest.approx(0.15)
    assert figures["gain_of_seeds"] == pytest.approx([0.1, 0.2])
    assert figures["minutes"] == pytest.approx(4.0)
    assert (figures["seeds"], figures["n"]) == (2, 1200)
    assert "+20.0" in next(line for line in table if line.startswith("seed-1"))


@pytest.mark.parametrize(
    ("arm", "name"),
    [
        (Arm(0), "seed-0"), (Arm(2, "tags"), "tags-2"), (Arm(1, recipe="webrl"), "webrl-1"),
        (Arm(11, "hermes", "phases"), "hermes-phases-11"),
    ],
)  # fmt: skip
def test_an_arm_is_found_by_its_name(arm, name):
    assert arm.name == name
    assert Arm.named(name) == arm


@pytest.mark.parametrize("family", ["shop", "web"])
def test_recipes_train_as_long_as_the_plain_profile(tmp_path, family):
    options = options_for(tmp_path, profile=family)
    plain, phases, webrl = (profile_of(Arm(0, recipe=one), options) for one in RECIPES)
    assert plain.training.steps == phases.training.steps == webrl.training.steps
    assert (plain.self_play.name, plain.training.replay.capacity) == ("off", 0)
    assert phases.self_play.name == webrl.self_play.name == "webrl"
    assert webrl.training.replay.perplexity_window == (1.05, 2.0)
    assert phases.environment == plain.environment
    assert not getattr(webrl.environment, "score_reward", 0), "the model alone pays"
    paid = paid_by(webrl, tmp_path / "model")
    assert paid.reward.outcome_model.model == tmp_path / "model"
    assert paid.model_copy(update={"reward": webrl.reward}) == webrl


def test_a_recipe_is_compared_with_the_plain_arm(tmp_path, capsys):
    options = options_for(tmp_path, profile="shop")
    arms = [Arm(0), Arm(0, recipe="webrl"), Arm(1, recipe="webrl")]
    judged = {"auc": 0.81, "agreement": 0.75, "dev_attempts": 200.0}
    told = {"posed": 30, "kept": 12, "outcome_model": judged, "agreement_in_training": 0.7}
    for arm, after in zip(arms, (180, 240, 400), strict=True):
        keep_result(options, arm, result(120, after) | (told if arm == arms[1] else {}))
    report(arms, options)
    *table, last = capsys.readouterr().out.splitlines()
    headline = json.loads(last)
    assert headline["webrl over plain"][0] == pytest.approx(0.1), "seed 1 has no plain arm"
    assert headline["webrl"]["n"] == 1200
    assert "webrl over plain: +10.0" in " ".join(table)
    assert "webrl-0: of 30 tasks proposed 12 were kept" in table
    assert [line for line in table if "agrees with the rule on 75 % of 200 dev attempts" in line]


def test_an_arm_of_another_commit_is_refused_unless_asked(tmp_path):
    options = options_for(tmp_path)
    keep_result(options, Arm(0), result(1, 2), at="0123abc")
    with pytest.raises(SystemExit, match="is of commit 0123abc"):
        kept_result(Arm(0), options)
    assert kept_result(Arm(0), options_for(tmp_path, any_commit=True))["commit"] == "0123abc"


def test_an_arm_of_other_settings_is_refused_or_deleted(tmp_path):
    keep_result(options_for(tmp_path), Arm(0), result(1, 2))
    changed = options_for(tmp_path, set=["training.steps=7"], any_commit=True)
    with pytest.raises(SystemExit, match="of another profile"):
        kept_result(Arm(0), changed)
    run_dir = tmp_path / "customer_service" / "seed-0"
    run_dir.mkdir()
    changed.again = True
    assert kept_result(Arm(0), changed) is None
    assert not run_dir.exists()


def test_a_killed_arm_of_another_commit_is_not_continued(tmp_path):
    options = options_for(tmp_path)
    begun = {"asked": asked(profile_of(Arm(0), options)), "origin": {"commit": "0123abc"}}
    folder = tmp_path / "customer_service"
    folder.mkdir()
    (folder / "seed-0.begun").write_text(json.dumps(begun))
    with pytest.raises(SystemExit, match="is of commit 0123abc"):
        kept_result(Arm(0), options)
    begun["origin"]["commit"] = commit()
    (folder / "seed-0.begun").write_text(json.dumps(begun))
    assert kept_result(Arm(0), options) is None


def test_too_few_held_out_tasks_fail_the_command(tmp_path):
    options = options_for(tmp_path)
    keep_result(options, Arm(0), result(1, 2, tasks=60))
    with pytest.raises(SystemExit, match="seed-0: fewer than 500"):
        report([Arm(0)], options)


def test_seeds_that_differ_widen_the_interval_over_seeds():
    alike = [result(120, 180), result(120, 180)]
    apart = [result(120, 120), result(120, 240)]
    mean, low, high = gain_over_seeds(apart)
    assert mean == pytest.approx(gain_over_seeds(alike).mean)
    assert high - low > 2 * (gain_over_seeds(alike).high - gain_over_seeds(alike).low)
    pooled = together(apart)["gain"]
    assert high - low > 2 * (pooled[2] - pooled[1])

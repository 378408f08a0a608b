"""The control of a run: how long it trains, on what, and what is printed of it."""

import json

import pandas as pd
import pytest

from espalier.config import Profile
from tests.benchmarks.sft_control import TrainingClock, budget_of, control_profile, report


def a_run(path, **seconds):
    (path / "warm_policy").mkdir(parents=True)
    pd.DataFrame({"step": range(1, 41)}).to_parquet(path / "warm_policy" / "history.parquet")
    timings = {stage: {"seconds": value, "peak_rss_mb": 900.0} for stage, value in seconds.items()}
    (path / "timings.json").write_text(json.dumps(timings))
    return path


def test_the_control_has_the_minutes_of_both_stages(tmp_path):
    run = a_run(tmp_path / "run", warm_start=60.0, train=300.0, evaluate=500.0)
    assert budget_of(run) == (360.0, 240)
    assert budget_of(run, minutes=0.05) == (3.0, 2)
    assert budget_of(run, minutes=0.001).steps == 1


def test_a_run_without_times_of_its_training_is_refused(tmp_path):
    run = a_run(tmp_path / "run", warm_start=60.0)
    with pytest.raises(SystemExit, match=r"timings\.json: has no seconds of train;"):
        budget_of(run)


def test_only_the_length_of_the_imitation_is_changed():
    warm = {"steps": 40, "max_epochs": 20, "evaluate_every": 10, "hindsight": {"attempts": 8}}
    profile = Profile.model_validate({"warm_start": warm, "seed": 3})
    control = control_profile(profile, 240)
    assert (control.warm_start.steps, control.warm_start.max_epochs) == (240, 120)
    assert control.warm_start.hindsight is None
    undone = {"steps": 40, "max_epochs": 20, "hindsight": profile.warm_start.hindsight}
    assert control.warm_start.model_copy(update=undone) == profile.warm_start
    for section in ("seed", "threads", "policy", "episode", "search", "training", "hardware"):
        assert getattr(control, section) == getattr(profile, section)
    assert control.evaluation.closed_book_questions == profile.evaluation.closed_book_questions
    assert control_profile(profile, 2).warm_start.max_epochs == 20


def test_a_resumed_clock_counts_up_to_the_last_checkpoint(tmp_path):
    path = tmp_path / "clock.json"
    path.write_text(json.dumps({"this": 100.0}))
    clock = TrainingClock(path, "this")
    with clock.progress("warm start", 40):
        clock.metrics({"loss": 1.0}, step=1)
    assert json.loads(path.read_text()) == {"this": 100.0}, "no checkpoint yet"
    clock.metrics({"loss": 1.0, "dev_em": 0.5}, step=2)
    assert 100 < json.loads(path.read_text())["this"] < 110
    assert TrainingClock(path, "another").before_s == 0


def test_the_last_line_holds_the_paired_differences(capsys):
    def figures(em, **more):
        return {"em": em, "ci95": [em - 0.1, em + 0.1], **more}

    result = {
        "minutes": {"given": 6.0, "taken": 6.2}, "steps": 240, "best_step": 120,
        "policies": {
            "untrained": figures(0.1), "warm_start": figures(0.4),
            "control": figures(0.5, closed_book_em=0.25, grounded=0.9),
            "trained": figures(0.7),
        },
        "trained_minus_control": {"em": 0.2, "ci95": [0.15, 0.25]},
        "control_minus_warm_start": {"em": 0.1, "ci95": [0.05, 0.15]},
    }  # fmt: skip
    report(result)
    *table, last = capsys.readouterr().out.splitlines()
    assert json.loads(last) == result
    assert [line.split("  ")[0] for line in table[1:5]] == [
        "untrained", "warm start", "control", "trained",
    ]  # fmt: skip
    assert "closed-book %" in table[0]
    assert table[3].split()[-2:] == ["25.0", "90.0"]
    assert "trained minus control: +20.0 [+15.0, +25.0], paired by question" in table
    assert "control: best of 240 steps at 120, 6.2 minutes of 6.0" in table

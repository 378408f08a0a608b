import io
import re

import pytest
from rich.console import Console

from espalier.records import CompositeTracker, NullTracker
from espalier.steps import console as console_module
from espalier.steps.console import (
    SUPERVISED_COLUMNS,
    TRAIN_COLUMNS,
    ConsoleTracker,
)
from espalier.steps.pace import Pace


@pytest.fixture
def log(monkeypatch):
    """A tracker that writes to a text, without waiting between lines."""
    monkeypatch.setattr(console_module, "LINE_INTERVAL_S", 0.0)
    text = io.StringIO()
    tracker = ConsoleTracker("train", Console(file=text, width=200), clock=Clock())
    return tracker, lambda: [line.rstrip() for line in text.getvalue().splitlines()]


class Clock:
    """A second passes each time that somebody looks."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        self.now_s += 1.0
        return self.now_s


ROW = {
    "reward": 0.431,
    "pass_rate": 0.375,
    "zero_variance_share": 0.6667,
    "clipped_share": 0.04103,
    "entropy": 1.031,
    "grad_norm": 2.0512,
    "mismatch_kl": 2.043e-13,
    "loss": -0.03007,
    "rollouts": 56,
    "tool_calls": 1.411,
    "lost_episodes": 0,
}


def test_a_table_has_the_same_columns_in_every_run(log):
    tracker, lines = log
    tracker.metrics(ROW, step=12)
    tracker.metrics({**ROW, "dev_em": 0.5, "critic_loss": 3.0}, step=13)
    assert lines() == [
        "train             step reward  pass zero_var  clip entropy  grad mismatch    loss calls"
        " dev_em  left",
        "train               12  0.431 0.375   0.6667 0.041   1.031 2.051 2.04e-13 -0.0301 1.411"
        "      -     -",
        "train               13  0.431 0.375   0.6667 0.041   1.031 2.051 2.04e-13 -0.0301 1.411"
        "    0.5     -",
    ]


@pytest.mark.parametrize("columns", [TRAIN_COLUMNS, SUPERVISED_COLUMNS])
def test_twelve_narrow_columns_fit_100_characters(columns):
    assert len(columns) <= 12
    assert all(len(column.title) <= column.width <= 8 for column in columns)
    assert len("filter_curriculum") + sum(column.width + 1 for column in columns) <= 100


@pytest.mark.parametrize("value", [1e300, -1e300, -1e-300, 123456.7, 999.96, -0.0123456, 0.1])
def test_a_figure_has_the_digits_that_fit_its_column(log, value):
    tracker, lines = log
    tracker.metrics({"reward": value}, step=1)
    shown = lines()[-1].split()[2]
    width = next(column.width for column in TRAIN_COLUMNS if column.figure == "reward")
    assert len(shown) <= max(width, len("-1e-300"))
    assert float(shown) == pytest.approx(value, rel=0.51, abs=0.6)


def test_time_left_is_told_in_a_log(log):
    tracker, lines = log
    with tracker.progress("questions", total=100) as progress:
        for _ in range(3):
            progress.advance(1)
        tracker.metrics(ROW, step=4)
    first, second, _, _, row, _ = lines()
    assert first.endswith("1/100")
    assert second.endswith("2/100  left 8:10")
    assert re.search(r" \d:\d\d$", row)


def test_the_last_row_is_said_and_its_figures_once(log, monkeypatch):
    monkeypatch.setattr(console_module, "LINE_INTERVAL_S", 100.0)
    tracker, lines = log
    with tracker.progress("train", total=3) as progress:
        for step in (1, 2, 3):
            tracker.metrics({**ROW, "reward": step}, step=step)
            progress.advance(1, reward=step)
    _, first, last, end = lines()
    assert [line.split()[1:3] for line in (first, last)] == [["1", "1"], ["3", "3"]]
    assert end == "train             train                        3/3"


def test_steps_of_an_earlier_attempt_count_for_no_pace():
    pace = Pace(200, Clock())
    pace.advance(100)
    pace.advance(1)
    assert pace.left() == "1:39"


def test_figures_without_a_step_are_one_line(log):
    tracker, lines = log
    tracker.metrics({"sft_tokens_per_s": 10321.7, "loss": float("nan")})
    assert lines() == ["train             sft_tokens_per_s 10322  loss nan"]


def test_progress_in_a_log_always_has_its_last_line(log):
    tracker, lines = log
    with tracker.progress("questions", total=20) as progress:
        progress.advance(5, found=3)
        progress.advance(15)
    assert lines()[0] == "train             questions                     5/20  found 3"
    assert lines()[-1] == "train             questions                    20/20  found 3"


def test_a_table_of_figures_takes_the_place_of_progress_lines(log):
    tracker, lines = log
    with tracker.progress("steps", total=2) as progress:
        tracker.metrics({"loss": 1.0}, step=1)
        progress.advance()
        tracker.metrics({"loss": 0.5}, step=2)
        progress.advance()
    assert [line.split()[1] for line in lines()] == ["step", "1", "2", "steps"]


def test_a_terminal_gets_a_bar():
    text = io.StringIO()
    tracker = ConsoleTracker("train", Console(file=text, width=120, force_terminal=True))
    with tracker.progress("steps", total=2) as progress:
        progress.advance(2, loss=0.5)
    assert "2/2" in text.getvalue()


def test_markup_in_a_note_is_printed_as_it_is(log):
    tracker, lines = log
    tracker.note("kept [bold]3[/bold] of 5")
    assert lines() == ["train             kept [bold]3[/bold] of 5"]


def test_every_listener_hears_everything(log, tmp_path):
    tracker, lines = log
    both = CompositeTracker(tracker, NullTracker(), tracker)
    both.params({"a": 1})
    both.metrics({"loss": 1.0})
    both.artifact(tmp_path)
    both.episodes([])
    both.note("said")
    with both.progress("work", total=1) as progress:
        progress.advance()
    assert len([line for line in lines() if "said" in line]) == 2
    assert len([line for line in lines() if "loss" in line]) == 2

import io

import pytest
from rich.console import Console

from espalier.records import NullTracker
from espalier.steps import console as console_module
from espalier.steps.console import ConsoleTracker
from espalier.steps.trackers import CompositeTracker


@pytest.fixture
def log(monkeypatch):
    """A tracker that writes to a text, without waiting between lines."""
    monkeypatch.setattr(console_module, "LINE_INTERVAL_S", 0.0)
    text = io.StringIO()
    tracker = ConsoleTracker("train", Console(file=text, width=200))
    return tracker, lambda: [line.rstrip() for line in text.getvalue().splitlines()]


def test_figures_of_a_step_stand_under_their_names(log):
    tracker, lines = log
    tracker.metrics({"reward": 0.431, "rollouts": 256}, step=12)
    tracker.metrics({"reward": 0.5, "rollouts": 512}, step=13)
    assert lines() == [
        "train                step   reward  rollouts",
        "train                  12    0.431       256",
        "train                  13      0.5       512",
    ]


def test_a_figure_that_is_not_there_every_step_does_not_repeat_the_header(log):
    tracker, lines = log
    tracker.metrics({"loss": 1.0}, step=1)
    tracker.metrics({"loss": 0.9, "dev_em": 0.5}, step=2)
    tracker.metrics({"loss": 0.8}, step=3)
    assert [line.split()[1] for line in lines()] == ["step", "1", "step", "2", "3"]
    assert lines()[-1].split() == ["train", "3", "0.8", "-"]


def test_a_table_shows_what_is_named_first(log):
    tracker, lines = log
    tracker.metrics({f"figure{number}": number for number in range(40)}, step=1)
    assert lines()[0].split()[1:] == ["step", *(f"figure{number}" for number in range(13))]


def test_figures_without_a_step_are_one_line(log):
    tracker, lines = log
    tracker.metrics({"sft_tokens_per_s": 10321.7, "loss": float("nan")})
    assert lines() == ["train             sft_tokens_per_s 10322  loss nan"]


def test_progress_in_a_log_is_lines_and_always_says_the_end(log):
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

import io

import pytest
from rich.console import Console

from espalier.steps import console as console_module
from espalier.steps.console import ConsoleTracker
from espalier.steps.pace import Pace


@pytest.fixture
def log(monkeypatch):
    """A tracker that writes to a text, without waiting between lines."""
    monkeypatch.setattr(console_module, "LINE_INTERVAL_S", 0.0)
    text = io.StringIO()
    tracker = ConsoleTracker("train", Console(file=text, width=200), clock=Clock())
    return tracker, lambda: [line.split() for line in text.getvalue().splitlines()]


class Clock:
    """A second passes each time that somebody looks."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        self.now_s += 1.0
        return self.now_s


def test_a_table_has_the_same_columns_in_every_run(log):
    tracker, lines = log
    tracker.metrics({"reward": 0.431, "mismatch_kl": 2.043e-13}, step=12)
    tracker.metrics({"reward": 0.5, "dev_em": 0.25, "critic_loss": 3.0}, step=13)
    head, first, second = lines()
    assert len(head) == len(first) == len(second)
    assert {"step", "reward", "mismatch", "dev_em"} <= set(head)
    rows = [dict(zip(head, row, strict=True)) for row in (first, second)]
    assert (rows[0]["reward"], rows[0]["mismatch"], rows[0]["dev_em"]) == ("0.431", "2.04e-13", "-")
    assert (rows[1]["step"], rows[1]["dev_em"]) == ("13", "0.25")


def test_the_last_row_is_said_and_its_figures_once(log, monkeypatch):
    monkeypatch.setattr(console_module, "LINE_INTERVAL_S", 100.0)
    tracker, lines = log
    with tracker.progress("train", total=3) as progress:
        for step in (1, 2, 3):
            tracker.metrics({"reward": step}, step=step)
            progress.advance(1, reward=step)
    _, first, last, end = lines()
    assert [line[1:3] for line in (first, last)] == [["1", "1"], ["3", "3"]]
    assert end == ["train", "train", "3/3"]


def test_steps_of_an_earlier_attempt_count_for_no_pace():
    pace = Pace(200, Clock())
    pace.advance(100)
    pace.advance(1)
    assert pace.left() == "1:39"

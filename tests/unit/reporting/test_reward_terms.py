import numpy as np
import pandas as pd
import pytest

from espalier.reporting.report import page_environment
from espalier.reporting.reward_terms import TermFront, pareto_front, term_front, term_points


class Run:
    """A run directory of which one table is read."""

    def __init__(self, history):
        self._history = history

    def table(self, stage, name):
        assert (stage, name) == ("train", "history.parquet")
        return self._history


def history(**columns):
    steps = range(1, 1 + len(next(iter(columns.values()))))
    return pd.DataFrame({"step": list(steps), **columns})


def test_the_front_holds_what_no_other_row_beats():
    values = np.array([[0.5, 0.1], [0.4, 0.3], [0.4, 0.2], [0.5, 0.1], [0.1, 0.1]])
    assert pareto_front(values).tolist() == [True, True, False, True, False]


def test_terms_are_means_over_ten_steps_at_evaluated_ones():
    dev = [None] * 19 + [0.6]
    outcome = [0.0] * 10 + [1.0] * 10
    points = term_points(history(dev_em=dev, **{"reward/outcome": outcome}))
    assert points.to_dict("records") == [{"step": 20, "dev_em": 0.6, "outcome": 1.0}]


def test_the_front_trades_answers_for_form():
    told = history(
        dev_em=[0.5, 0.4, 0.3],
        **{"reward/outcome": [0.5, 0.4, 0.3], "reward/form": [0.1, 0.3, 0.05]},
    )
    found = term_front(Run(told))
    assert [row[0] for row in found.front.rows] == ["1", "2"]
    assert found.everything.total_rows == 3


@pytest.mark.parametrize("told", [None, history(loss=[1.0]), history(dev_em=[0.5])])
def test_a_run_without_terms_shows_no_table(told):
    assert term_front(Run(told)) is None


def test_the_page_shows_the_front(tmp_path):
    told = history(dev_em=[0.5, 0.4], **{"reward/outcome": [0.5, 0.4], "reward/form": [0.1, 0.3]})
    found = term_front(Run(told))
    assert isinstance(found, TermFront)
    shown = page_environment().from_string(
        '{% from "macros.html.jinja" import data %}{{ data(found.front, "front") }}'
    )
    assert "reward_front.csv" in shown.render(found=found)

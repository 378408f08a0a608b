import numpy as np
import pandas as pd
import pytest

from espalier.reporting.reward_terms import pareto_front, term_points, term_tables


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
    front, everything = term_tables(Run(told))
    assert [row[0] for row in front.rows] == [1, 2]
    assert [row[-1] for row in everything.rows] == ["yes", "yes", ""]


@pytest.mark.parametrize("told", [None, history(loss=[1.0]), history(dev_em=[0.5])])
def test_a_run_without_terms_shows_no_table(told):
    assert term_tables(Run(told)) == ()

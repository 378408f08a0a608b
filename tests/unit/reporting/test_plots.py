import re

import pandas as pd
import pytest

from espalier.reporting.plots import (
    Curve,
    downloadable,
    embed,
    plot_curve,
    plot_exact_match,
)

HISTORY = pd.DataFrame(
    {"step": [1, 2, 3], "pass_rate": [0.2, 0.3, 0.5], "dev_em": [None, 0.4, None]}
)


def test_a_rate_is_drawn_from_zero_to_one():
    (axes,) = plot_curve(HISTORY, Curve("pass_rate", "Pass rate", "0-1", is_rate=True)).axes

    assert axes.get_ylim() == (0.0, 1.0)
    assert axes.get_xlabel() == "optimizer step"


def test_a_sparse_curve_skips_unmeasured_steps_and_has_markers():
    (axes,) = plot_curve(HISTORY, Curve("dev_em", "Dev", "0-1", is_rate=True)).axes

    (line,) = axes.lines
    assert list(line.get_xdata()) == [2.0]
    assert line.get_marker() == "o"


def test_a_reward_below_zero_stays_on_the_axis():
    history = pd.DataFrame({"step": [1, 2], "reward": [-0.5, 0.5]})

    (axes,) = plot_curve(history, Curve("reward", "Reward", "mean")).axes

    low, high = axes.get_ylim()
    assert low < -0.5
    assert high > 0.5


def test_a_phase_ends_between_two_steps():
    curve = Curve("pass_rate", "Pass rate", "0-1")

    (axes,) = plot_curve(HISTORY, curve, phase_ends=[1, 2]).axes

    _, *uprights = axes.lines
    assert [tuple(line.get_xdata()) for line in uprights] == [(1.5, 1.5), (2.5, 2.5)]


def test_a_policy_that_was_not_evaluated_has_no_bars():
    scores = pd.DataFrame(
        {"group": ["1 hop", "2 hops"], "warm_start": [0.4, 0.2], "trained": [None, None]}
    )

    (axes,) = plot_exact_match(scores).axes

    assert len(axes.containers) == 1


@pytest.fixture
def svg():
    return embed(plot_curve(HISTORY, Curve("pass_rate", "Pass rate", "0-1")), "grpo-a", 'a "b" <c>')


def test_an_embedded_figure_has_no_date_address_or_header(svg):
    assert svg.startswith("<svg")
    for unwanted in ("<?xml", "DOCTYPE", "metadata", "://", "Matplotlib"):
        assert unwanted not in svg


def test_an_embedded_figure_prefixes_every_id_with_its_name(svg):
    assert all(name.startswith("grpo-a-") for name in re.findall(r'\bid="([^"]+)"', svg))
    assert all(name.startswith("grpo-a-") for name in re.findall(r"url\(#([^)]+)\)", svg))


def test_an_embedded_figure_uses_the_colours_of_the_page(svg):
    assert "var(--series-3)" in svg
    assert "#0101" not in svg


def test_the_description_of_a_figure_is_escaped(svg):
    assert 'aria-label="a &#34;b&#34; &lt;c&gt;"' in svg


def test_the_same_figure_is_the_same_svg(svg):
    again = embed(
        plot_curve(HISTORY, Curve("pass_rate", "Pass rate", "0-1")), "grpo-a", 'a "b" <c>'
    )

    assert again == svg


def test_a_long_table_is_shown_in_part_and_downloaded_whole():
    table = downloadable(pd.DataFrame({"step": range(500)}), "history.csv")

    assert (len(table.rows), table.total_rows) == (400, 500)
    assert table.data_uri.startswith("data:text/csv")

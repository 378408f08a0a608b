import pytest

from espalier.config import EvaluationConfig
from espalier.evaluation import gain, summarize
from espalier.records import group_changes
from tests.factories.evaluation import a_row

CONFIG = EvaluationConfig(bootstrap_resamples=500)


def rows_with(correct):
    return [a_row(str(place), em=em) for place, em in enumerate(correct)]


def test_figures_are_means_over_questions():
    rows = [
        a_row("a", em=True, f1=1.0, tool_calls=1, hops=1),
        a_row("b", em=False, f1=0.5, tool_calls=2, hops=2, finish_reason="max_turns"),
        a_row("c", em=False, f1=0.0, tool_calls=3, hops=2, kind="union"),
        a_row("d", em=True, f1=1.0, tool_calls=4, hops=2),
    ]
    found = summarize(rows, CONFIG, seed=0)
    assert (found["em"], found["f1"], found["n"], found["tool_calls"]) == (0.5, 0.625, 4, 2.5)
    low, high = found["ci95"]
    assert 0 <= low <= 0.5 <= high <= 1
    assert found["by_hops"]["1"]["em"] == 1.0
    assert found["by_hops"]["2"]["em"] == pytest.approx(1 / 3, abs=1e-6)
    assert found["by_hops"]["2"]["n"] == 3
    assert set(found["by_kind"]) == {"chain", "union"}
    assert found["finish_reasons"] == {"answered": 3, "max_turns": 1}


def test_pass_at_k_is_averaged_over_the_sampled_questions_only():
    rows = [
        a_row("a", samples=4, samples_right=1),
        a_row("b", samples=4, samples_right=0),
        a_row("c", samples=0),
        a_row("d", samples=4, samples_right=4),
        a_row("e", samples=4, samples_right=3),
    ]
    found = summarize(rows, CONFIG, seed=0)
    assert found["pass_at_1"] == 0.5
    assert found["pass_at_4"] == 0.75
    assert found["pass_hat_4"] == 0.25


@pytest.mark.parametrize(
    ("samples", "rates"),
    [
        (0, {}),
        (2, {"pass_at_1": 0.5, "pass_at_2": 1.0, "pass_hat_2": 0.0}),
        (8, {"pass_at_1": 0.125, "pass_at_4": 0.5, "pass_at_8": 1.0,
             "pass_hat_4": 0.0, "pass_hat_8": 0.0}),
    ],
)  # fmt: skip
def test_k_goes_no_further_than_the_samples_taken(samples, rates):
    found = summarize([a_row(samples=samples, samples_right=min(samples, 1))], CONFIG, seed=0)
    assert {key: rate for key, rate in found.items() if key.startswith("pass_")} == rates


def test_gain_is_paired_by_question():
    before = rows_with([True, False, False, True])
    after = rows_with([True, True, True, False])
    found = gain(after, before, CONFIG, seed=0)
    assert found["em"] == 0.25
    assert found["ci95"][0] < 0.25 < found["ci95"][1]


def test_every_group_has_a_paired_gain_of_its_own():
    hops = [4] * 20 + [1] * 20
    before = [a_row(str(n), em=True, hops=steps) for n, steps in enumerate(hops)]
    after = [a_row(str(n), em=n >= 10, hops=steps) for n, steps in enumerate(hops)]
    found = gain(after, before, CONFIG, seed=0)
    assert (found["em"], list(found["by_hops"])) == (-0.25, ["1", "4"])
    assert found["by_hops"]["1"] == {"em": 0.0, "ci95": [0.0, 0.0], "n": 20}
    assert (found["by_hops"]["4"]["em"], found["by_hops"]["4"]["n"]) == (-0.5, 20)
    assert found["by_hops"]["4"]["ci95"][1] < 0
    fallen = [one for one in group_changes(found).values() if one.has_fallen]
    assert [str(one).split(" points")[0] for one in fallen] == ["4 hops -50.0"]


def test_a_group_of_nine_is_not_said_to_fall():
    for count, fallen in ((9, False), (10, True)):
        rows = {"em": -0.5, "ci95": [-0.8, -0.1], "n": count}
        changes = group_changes({"by_hops": {"4": rows, "1": rows | {"ci95": [-0.8, 0.0]}}})
        assert changes["hops", "4"].has_fallen is fallen
        assert not changes["hops", "1"].has_fallen


def test_rows_of_other_questions_are_not_compared():
    with pytest.raises(ValueError, match="questions"):
        gain([a_row("a")], [a_row("b")], CONFIG, seed=0)

import json

import pytest

from tests.benchmarks.kept_step import (
    CURVES,
    RULES,
    History,
    Look,
    read_history,
    replayed,
    simulated,
)


def looks_of(*scores, questions=100):
    return [Look(step, em, questions) for step, em in enumerate(scores)]


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        ((0.5, 0.8, 0.7, 0.8, 0.6), {"earliest": 1, "later": 3, "neighbours": 2, "one_error": 3}),
        # one standard error at 0.8 of 100 questions is 0.04
        ((0.5, 0.8, 0.75, 0.77), {"earliest": 1, "later": 1, "neighbours": 2, "one_error": 3}),
        ((0.9, 0.5, 0.5), {"earliest": 0, "later": 0, "neighbours": 0, "one_error": 0}),
        ((0.0, 0.0), {"earliest": 0, "later": 1, "neighbours": 1, "one_error": 1}),
    ],
)
def test_every_rule_chooses_as_it_says(scores, chosen):
    looks = looks_of(*scores)
    assert {name: rule(looks).step for name, rule in RULES.items()} == chosen


def test_a_rule_loses_what_the_best_look_has_more():
    ties = History(looks_of(0.8, 0.7, 0.8), [0.785, 0.8, 0.833])
    rows = replayed([ties, ties])
    assert (rows["earliest"]["lost"], rows["later"]["lost"]) == (4.8, 0.0)
    assert rows["later"]["gain"] == [4.8, 4.8, 4.8]
    assert (rows["earliest"]["best_in"], rows["later"]["best_in"]) == (0, 2)


def test_made_up_runs_repeat_themselves_by_seed():
    one, same, other = (
        simulated(CURVES["rises"], jitter=0.015, asked=50, seed=seed) for seed in (3, 3, 4)
    )
    assert one == same != other
    assert all(0 <= look.dev_em <= 1 for look in one.looks)


def test_a_recorded_run_is_read_back(tmp_path):
    rows = [{"step": step, "dev_em": em, "heldout_em": em} for step, em in ((0, 0.5), (10, 0.7))]
    path = tmp_path / "0.json"
    path.write_text(json.dumps({"asked": {"dev_questions": 20}, "rows": rows}))
    assert read_history(path) == History([Look(0, 0.5, 20), Look(10, 0.7, 20)], [0.5, 0.7])

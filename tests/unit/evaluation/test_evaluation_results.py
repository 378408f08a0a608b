import json

import pytest

from espalier.config import EvaluationConfig, Profile
from espalier.evaluation import results_table
from espalier.evaluation.policies import PolicyEvaluation, RolloutCost
from espalier.evaluation.results import summarize
from espalier.evaluation.suite import make_suite
from espalier.records import Manifest, group_label, shown_group
from espalier.stages.evaluate import policy_digest, results_of
from tests.factories.evaluation import a_row, a_task

COST = RolloutCost(1, 2, 1.0)
POLICIES = ("untrained", "warm_start", "trained")
GAIN = {"em": 0.0, "ci95": [0.0, 0.0], "baseline": "warm_start"}


def judged(correct):
    rows = [
        a_row(str(place), em=em, hops=1 + place % 2, samples=4, samples_right=2 * em)
        for place, em in enumerate(correct)
    ]
    return PolicyEvaluation(rows, [], COST)


@pytest.fixture(scope="module")
def results():
    profile = Profile(evaluation=EvaluationConfig(bootstrap_resamples=200))
    suite = make_suite(profile, [a_task(str(place)) for place in range(4)], "k")
    by_policy = {
        "untrained": judged([False, False, False, False]),
        "warm_start": judged([True, False, False, False]),
        "trained": judged([True, True, True, False]),
    }
    return results_of(profile, suite, dict.fromkeys(by_policy, "digest"), by_policy)


def test_results_have_the_documented_shape(results):
    assert set(results["suite"]) == {"digest", "n", "sampled_n", "samples_per_task"}
    assert set(results["eval"]) == {"untrained", "warm_start", "trained", "gain"}
    assert {
        "em", "f1", "n", "ci95", "pass_at_1", "pass_at_4", "pass_hat_4", "tool_calls", "by_hops",
        "by_kind", "finish_reasons", "lost_episodes", "broke_sandbox_episodes",
    } <= set(results["eval"]["trained"])  # fmt: skip
    assert results["eval"]["gain"]["em"] == 0.5
    assert results["eval"]["gain"]["baseline"] == "warm_start"
    assert json.loads(json.dumps(results)) == results


def test_the_table_has_a_row_a_policy_and_the_gain(results):
    table = results_table(results)
    assert [row["policy"] for row in table] == [
        "untrained", "warm start", "trained", "trained - warm start",
    ]  # fmt: skip
    assert [row["EM %"] for row in table] == ["0.0", "25.0", "75.0", "+50.0"]
    assert [row["1 hop %"] for row in table] == ["0.0", "50.0", "100.0", ""]
    assert [row["2 hops %"] for row in table] == ["0.0", "0.0", "50.0", ""]
    assert len({tuple(row) for row in table}) == 1


def test_lost_episodes_have_a_column_where_there_are_any(results):
    trained = results["eval"]["trained"] | {"broke_sandbox_episodes": 3}
    table = results_table(results | {"eval": results["eval"] | {"trained": trained}})
    assert [row["broke sandbox"] for row in table] == ["0", "0", "3", ""]
    assert "lost" not in table[0]
    assert "broke sandbox" not in results_table(results)[0]


def known(places, **fields):
    return [
        a_row(str(place), **{name: of[place] for name, of in fields.items()}) for place in places
    ]


def test_shares_from_memory_and_from_searches_stand_beside_em():
    rows = known(
        range(4),
        em=[True, True, False, False],
        grounded=[True, False, True, None],
        closed_book_em=[True, False, False, None],
        closed_book_answer=["Lyon", "Paris", None, None],
    )
    found = summarize(rows, EvaluationConfig(bootstrap_resamples=200), seed=0)
    assert (found["closed_book_em"], found["closed_book_n"]) == (pytest.approx(1 / 3, abs=1e-6), 3)
    assert found["closed_book_answered"] == pytest.approx(2 / 3, abs=1e-6)
    assert (found["grounded"], found["grounded_n"]) == (pytest.approx(2 / 3, abs=1e-6), 3)
    assert found["grounded_right"] == 0.5
    for name in ("closed_book_em", "closed_book_answered", "grounded", "grounded_right"):
        low, high = found[f"{name}_ci95"]
        assert 0 <= low <= found[name] <= high <= 1


def test_figures_leave_out_what_was_not_asked_for(results):
    unknown = {"closed_book_em", "closed_book_n", "grounded", "grounded_n", "grounded_right"}
    assert not unknown & set(results["eval"]["trained"])
    assert not {"closed-book %", "grounded %"} & set(results_table(results)[0])


def test_the_table_has_a_dash_for_a_policy_without_answers(results):
    knows = {"closed_book_em": 0.25, "grounded": 0.5}
    figures = results["eval"] | {
        "untrained": results["eval"]["untrained"] | {"closed_book_em": 0.125},
        "trained": results["eval"]["trained"] | knows,
    }
    table = results_table(results | {"eval": figures})
    assert [row["closed-book %"] for row in table] == ["12.5", "-", "25.0", ""]
    assert [row["grounded %"] for row in table] == ["-", "-", "50.0", ""]


def test_the_table_names_each_k_that_was_measured(results):
    of_two = {"em": 0.5, "f1": 0.5, "ci95": [0, 1], "pass_at_1": 0.25, "pass_at_4": None,
              "pass_at_2": 0.5, "tool_calls": 1.0}  # fmt: skip
    table = results_table(results | {"eval": dict.fromkeys(POLICIES, of_two) | {"gain": GAIN}})
    assert [key for key in table[0] if key.startswith("pass")] == ["pass@1 %", "pass@2 %"]


def test_the_table_shows_the_groups_that_the_results_have(results):
    steps = {step: {"em": 0.1 * int(step)} for step in ("1", "2", "10")}
    kinds = {"sum": {"em": 0.1}, "product": {"em": 0.2}}
    figures = results["eval"]["trained"] | {"by_kind": kinds, "by_steps": steps}
    figures = {key: value for key, value in figures.items() if key not in ("by_hops", "by_family")}
    table = results_table(results | {"eval": dict.fromkeys(POLICIES, figures) | {"gain": GAIN}})
    assert list(table[0])[-3:] == ["1 step %", "2 steps %", "10 steps %"]


def test_groups_of_fractions_are_in_the_order_of_their_size():
    figures = {"by_kind": {"a": {}, "b": {}}, "by_difficulty": {"1": {}, "0.5": {}, "0.25": {}}}
    assert shown_group([figures]) == ("difficulty", ["0.25", "0.5", "1"])
    assert group_label("difficulty", "0.5") == "difficulty 0.5"


def test_equal_weights_have_an_equal_digest_whatever_stands_beside_them():
    def manifest(**files):
        return Manifest(
            producer="train", config_digest="0", seed=0, files=files, integrity="", content="",
            packages={}, created="",
        )  # fmt: skip

    weights = {"policy/model.safetensors": "w"}
    first = manifest(**weights, **{"history.parquet": "1"})
    second = manifest(**weights, **{"history.parquet": "2"})
    other = manifest(**{"policy/model.safetensors": "v", "history.parquet": "1"})
    assert policy_digest(first) == policy_digest(second) != policy_digest(other)

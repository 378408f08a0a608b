import json

import pytest

from espalier.config import EvaluationConfig, Profile
from espalier.evaluation import results_table
from espalier.evaluation.policies import PolicyEvaluation, RolloutCost
from espalier.evaluation.results import summarize
from espalier.evaluation.suite import make_suite
from espalier.records import Manifest, shown_group
from espalier.stages.evaluate import policy_digest, results_of
from tests.factories.evaluation import a_row, a_task

COST = RolloutCost(1, 2, 1.0)


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


def test_the_gain_is_over_the_policy_before(results):
    assert results["eval"]["gain"]["em"] == 0.5
    assert results["eval"]["gain"]["baseline"] == "warm_start"
    assert json.loads(json.dumps(results)) == results
    unknown = {"closed_book_em", "closed_book_n", "grounded", "grounded_n", "grounded_right"}
    assert not unknown & set(results["eval"]["trained"]), "what was not asked for"


def test_the_table_has_a_row_a_policy_and_the_gain(results):
    table = results_table(results)
    assert [row["EM %"] for row in table] == ["0.0", "25.0", "75.0", "+50.0"]
    assert [row["1 hop %"] for row in table] == ["0.0", "50.0", "100.0", ""]
    assert len({tuple(row) for row in table}) == 1


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


def test_groups_of_numbers_are_in_the_order_of_their_size():
    figures = {"by_kind": {"a": {}, "b": {}}, "by_difficulty": {"10": {}, "2": {}, "0.25": {}}}
    assert shown_group([figures]) == ("difficulty", ["0.25", "2", "10"])


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

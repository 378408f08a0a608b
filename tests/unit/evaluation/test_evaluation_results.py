import json

import pytest

from espalier.config import EvaluationConfig, Profile, family_class
from espalier.environments import StatefulFamily, make_task
from espalier.evaluation import results_table
from espalier.evaluation.policies import PolicyEvaluation, RolloutCost
from espalier.evaluation.results import figures_as_written, summarize
from espalier.evaluation.suite import make_suite
from espalier.records import Manifest, shown_group
from espalier.reporting.charts import exact_match_chart
from espalier.reporting.comparison import compare
from espalier.reporting.summary import PolicyFigures
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
    return results_with(Profile(evaluation=EvaluationConfig(bootstrap_resamples=200)))


def results_with(profile):
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


def test_questions_of_added_lines_have_figures_with_and_without_them():
    config = EvaluationConfig(bootstrap_resamples=200)
    whole = judged([True, True, True, False, True]).rows
    without = judged([True, False, False, False]).rows
    figures = figures_as_written(without, whole, config, 0)
    assert figures["as_written_n"] == 4
    assert (figures["added_lines_em"], figures["as_written_em"]) == (0.75, 0.25)
    low, high = figures["as_written_em_ci95"]
    assert 0 <= low < 0.25 < high <= 1
    table = compare({"eval": {"trained": {**summarize(whole, config, 0), **figures}}})
    rows = {row.label: row.cells[-1] for row in table.groups[0][1]}
    assert rows["Exact match of questions from triples"].figure == "75.0 %"
    assert rows["The same without the added lines"].figure == "25.0 %"
    assert "4" in rows["The same without the added lines"].note
    assert PolicyFigures(em=0, n=5, ci95=(0, 1), **figures).as_written_em == 0.25


def test_the_table_has_a_row_a_policy_and_the_gain(results):
    table = results_table(results)
    assert [row["EM %"] for row in table] == ["0.0", "25.0", "75.0", "+50.0"]
    assert [row["1 hop %"] for row in table] == ["0.0", "50.0", "100.0", ""]
    assert len({tuple(row) for row in table}) == 1


@pytest.mark.parametrize(
    ("policy", "name"), [({}, "after reading"), ({"model": "smollm2"}, "untrained")]
)
def test_a_base_policy_taught_to_read_is_named_so(policy, name):
    found = results_with(Profile.model_validate({"policy": policy}))
    assert results_table(found)[0]["policy"] == name
    assert compare(found).policies[0] == name
    assert name in exact_match_chart(found).figures[0]


def test_results_of_before_keep_their_name(results):
    before = {key: value for key, value in results.items() if key != "taught_to_read"}
    assert results_table(before)[0]["policy"] == compare(before).policies[0] == "untrained"


def test_f1_is_left_out_where_no_answer_is_a_text(results):
    rows = [a_row(str(place), f1=None) for place in range(3)]
    found = summarize(rows, EvaluationConfig(), 0)
    assert not {"f1", "f1_ci95"} & set(found)
    figures = dict.fromkeys(("untrained", "warm_start", "trained"), found)
    without = {**results, "eval": {**results["eval"], **figures}}
    assert "F1 %" not in results_table(without)[0]
    labels = {row.label for row in compare({"eval": {"trained": found}}).groups[0][1]}
    assert "F1" not in labels
    assert PolicyFigures.model_validate(found).f1 is None


def test_f1_is_over_the_answers_that_are_texts():
    rows = [a_row("a", f1=None), a_row("b", f1=0.5), a_row("c", f1=1.0)]
    assert summarize(rows, EvaluationConfig(), 0)["f1"] == 0.75


@pytest.mark.parametrize(
    ("family", "kind", "is_text"),
    [
        ("search_qa", "exact_match", True),
        ("python_math", "math_equivalence", True),
        ("procedural", "reasoning_gym", True),
        ("tests.unit.environments.prices:Prices", "exact_match", True),
        ("customer_service", "final_state", False),
        ("shop", "purchase", False),
        ("sql", "rows", False),
        ("web", "web", False),
        ("code", "unit_tests", False),
        ("software_repair", "hidden_tests", False),
        ("function_calling", "calls", False),
        ("espalier_interop.mcp:Mcp", "exact_match", True),
        ("espalier_interop.mcp:Mcp", "checks", False),
        ("espalier_interop.harbor:Harbor", "tests", False),
        ("espalier_interop.verifiers:TasksetFamily", "server", False),
        ("espalier_interop.openenv:OpenEnv", "server", False),
        (f"{__name__}:Safe", "exact_match", False),
    ],
)
def test_only_families_of_texts_have_an_f1(family, kind, is_text):
    task = make_task("f", "q", gold=("g",), split="heldout", source="s", key="k", kind=kind)
    own = family_class(family)
    assert own.has_text_answer(own, task) is is_text


class Safe(StatefulFamily):
    name = "safe"

    def episode(self, task):
        raise NotImplementedError

    def tools(self):
        return ()

    def tasks(self, split, count):
        return ()


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

"""ToolRL's reward against its own code's, and calls that its cases do not have."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.rewards.toolrl import calls_correctness, toolrl_score
from tests.golden_cases import golden_family

PARIS = {"name": "weather", "parameters": {"city": "Paris", "days": 3}}
ROME = {"name": "weather", "parameters": {"city": "Rome", "days": 3}}


@pytest.mark.parametrize(
    "case", golden_family("toolrl", topic="rewards"), ids=lambda it: it["name"]
)
def test_score_equals_toolrls_own(case):
    score = toolrl_score(case["inputs"]["response"], case["inputs"]["ground_truth"])
    assert score.format == case["expected"]["format"]
    tolerance = case["tolerance"]
    assert score.correctness == pytest.approx(
        case["expected"]["correctness"], rel=tolerance["rtol"], abs=tolerance["atol"]
    )


@given(st.lists(st.sampled_from([PARIS, ROME]), max_size=4))
def test_correctness_is_most_for_the_same_calls_alone(calls):
    gold = [PARIS, ROME]
    same = sorted(map(json.dumps, calls)) == sorted(map(json.dumps, gold))
    assert -3 <= calls_correctness(calls, gold) <= 3
    assert (calls_correctness(calls, gold) == 3) == same


def test_a_gold_answer_without_parameters_is_an_error():
    with pytest.raises(ValueError, match="parameters"):
        toolrl_score("", '<tool_call>\n{"name": "a"}\n</tool_call>')

import pytest

from espalier.rewards.math_equivalence import last_boxed, math_equivalent
from espalier.rewards.verdicts import retool_reward
from tests.golden_cases import golden_family

RETOOL = golden_family("retool", topic="rewards")


@pytest.mark.parametrize("case", RETOOL, ids=lambda case: case["name"])
def test_agrees_with_verls_recipe_where_messages_are_credited(case):
    inputs = case["inputs"]
    boxed = last_boxed(inputs["solution_str"])
    reward = retool_reward(
        correct=math_equivalent(boxed, [inputs["ground_truth"]]),
        num_messages=inputs["num_turns"],
        credit_per_message=0.05,
    )
    assert reward == pytest.approx(case["expected"]["score"])


def test_without_credit_an_answer_is_worth_one_or_minus_one():
    assert retool_reward(correct=True, num_messages=9) == 1.0
    assert retool_reward(correct=False, num_messages=9) == -1.0

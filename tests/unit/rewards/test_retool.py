import json
from pathlib import Path

import pytest

from espalier.rewards import last_boxed, math_equivalent, retool_reward

GOLDEN = Path(__file__).resolve().parents[4] / "shared" / "golden" / "rewards.json"


def golden_cases():
    if not GOLDEN.is_file():
        return []
    cases = json.loads(GOLDEN.read_bytes())["cases"]
    return [pytest.param(c, id=c["name"]) for c in cases if c["name"].startswith("retool/")]


@pytest.mark.skipif(not GOLDEN.is_file(), reason=f"{GOLDEN} is not here")
@pytest.mark.parametrize("case", golden_cases())
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

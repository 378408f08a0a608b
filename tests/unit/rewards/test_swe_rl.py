"""SWE-RL's reward of patches, as its own code computes it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.rewards.swe_rl import BAD_FORMAT, patch_likeness, swe_rl_reward
from espalier_environments.software_repair.diffs import parsed_diff
from tests.golden_cases import golden_cases

CASES = golden_cases("rewards")
BLOCKS = [case for case in CASES if case["name"].startswith("swerl/")]
DIFFS = [case for case in CASES if case["name"].startswith("swerl_unidiff/")]
MARKS = st.sampled_from(
    ["<think>", "</think>", "<solution>", "</solution>", "```", "```python\n", "\n### a.py\n", "x",
     "<<<<<<< SEARCH\n", "\n=======\n", "\n>>>>>>> REPLACE\n```", "\n", "### ", "t"]
)  # fmt: skip


@pytest.mark.parametrize("case", BLOCKS, ids=lambda case: case["name"])
def test_blocks_score_as_upstream(case):
    given, expected = case["inputs"], case["expected"]
    found = swe_rl_reward(given["code_context"], given["oracle_new_content"], given["output"])
    assert found.reward == pytest.approx(expected["reward"], rel=1e-7)
    assert found.error == expected.get("error", "")
    assert dict(found.similarities) == pytest.approx(expected.get("similarities", {}), rel=1e-7)


@pytest.mark.parametrize("case", DIFFS, ids=lambda case: case["name"])
def test_diffs_score_as_upstream(case):
    gold, patch = (
        {one.path: one.text for text in case["inputs"][key] for one in parsed_diff(text)}
        for key in ("oracle_patches", "pred_patches")
    )
    found = patch_likeness(gold, patch).reward
    assert found == pytest.approx(case["expected"]["reward"], rel=1e-7)


@given(parts=st.lists(MARKS, max_size=30))
def test_any_text_has_a_reward_in_range(parts):
    found = swe_rl_reward({"a.py": "x\n"}, {"a.py": "y\n"}, "".join(parts))
    assert found.reward == BAD_FORMAT or 0 <= found.reward <= 1
    assert (found.reward == BAD_FORMAT) == bool(found.error)

"""SWE-RL's reward of patches, as its own code computes it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.rewards.swe_rl import (
    BAD_FORMAT,
    BlockError,
    SearchReplace,
    changed_files,
    patch_likeness,
    search_replace_blocks,
    swe_rl_reward,
)
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


BLOCK = "### a.py\n<<<<<<< SEARCH\nold\n=======\nnew\n>>>>>>> REPLACE\n```"


@pytest.mark.parametrize(
    "before", ["```python\n", "``` ```\n", "```\n```python\n", "```\n### b.py\n\n```python\n"]
)
def test_a_block_begins_at_the_fence_above_its_path(before):
    found = search_replace_blocks(before + BLOCK, tags=False)
    assert found == [("a.py", "old", "new")]


@pytest.mark.parametrize("between", ["\n\n", "\nb.py\n", " "])
def test_a_path_apart_from_its_fence_begins_no_block(between):
    with pytest.raises(BlockError, match="No valid search blocks"):
        search_replace_blocks(f"```python{between}{BLOCK}", tags=False)


def seconds(text):
    def once():
        began = time.process_time()
        with pytest.raises(BlockError):
            search_replace_blocks(text, tags=False)
        return time.process_time() - began

    return min(once() for _ in range(3))


@pytest.mark.parametrize("fence", ["```", "```\n", "```\n### a\n"])
def test_the_time_for_unopened_blocks_grows_with_their_length(fence):
    short, long = (
        seconds(fence * (length // len(fence)) + "\n### a\nb\n<<<<<<< SEARCH\n")
        for length in (12_000, 96_000)
    )
    assert long < 20 * max(short, 0.01), "a quadratic reader takes 64 times as long"


def test_an_empty_search_fills_only_what_is_empty():
    before = {"a.py": "def f():\n    return 1\n", "empty.py": ""}
    for path in ("new.py", "empty.py"):
        block = SearchReplace(path, "", "x")
        assert changed_files(before, [block], prefixes_lines=False) == {path: "x"}
    block = SearchReplace("a.py", "", "x")
    with pytest.raises(BlockError, match=r"a\.py is empty, and the file is not"):
        changed_files(before, [block], prefixes_lines=False)
    assert changed_files(before, [block])["a.py"] == "xdef f():\nx    return 1\nx"

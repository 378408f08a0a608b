import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.rewards.math_equivalence import final_answer, last_boxed


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{84}", "84"),
        (r"so \boxed{\frac{1}{2}} it is", r"\frac{1}{2}"),
        (r"\boxed{3}, no: \boxed{ 4 }", "4"),
        (r"\boxed{7} and \boxed{8", "7"),
        ("84", "84"),
        (r"\boxed{}", r"\boxed{}"),
        ("24 + 48 = 72\nANSWER: 72", "72"),
        ("**Final Answer:** **$72$**\r\nIndeed.", "$72$"),
        ("Answer: 1\nanswer: 2", "2"),
        ("Answer: 1\nor \\boxed{2}", "2"),
        ("the answer: 72", "the answer: 72"),
        ("24 + 48 = 72\n#### 1,072", "1,072"),
        ("Answer: 1\n#### 2", "2"),
        ("#### Step 1", "#### Step 1"),
    ],
)
def test_the_last_whole_box_holds_the_answer(text, answer):
    assert final_answer(text) == answer


@given(st.text(alphabet=r"\boxed{}1 ", max_size=60))
def test_whatever_is_written_a_box_is_balanced_or_none(text):
    found = last_boxed(text)
    assert found is None or found.count("{") == found.count("}")

"""The tags of Search-R1, and those of ReTool, in whose messages free text may stand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.config import Profile
from espalier.records import FinalAnswer, Malformed, ToolCall, ToolCalls
from espalier_environments.python_math import PythonMath
from espalier_search.synthesis.search_wording import search_call
from tests.factories.tiny import TAGS, TOOLS

PYTHON = PythonMath(Profile.model_validate({"environment": {"name": "python_math"}})).specs
SEARCH_TEXT = ("a", " ", "\n", "<", *TAGS.markers(TOOLS))


def program(code, thought=None):
    return ToolCalls((ToolCall(name="python", arguments={"code": code}),), thought)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<think> a </think> <search> lyon  country </search>", search_call("a", "lyon country")),
        ("<think></think><answer>Euro</answer>", FinalAnswer("Euro", "")),
        (" <think>x</think>\n<answer> new york </answer>\n", FinalAnswer("new york", "x")),
    ],
)
def test_well_formed_searches_and_answers_are_parsed(text, action):
    assert TAGS.parse(text, TOOLS) == action


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<answer>Euro</answer>",
        "<think>x</think>",
        "<think>x</think><search>  </search>",
        "<think>x</think><search>a</answer>",
        "<think>x</think><answer>a</answer><answer>b</answer>",
        "<think><think>x</think><answer>a</answer>",
    ],
)
def test_anything_else_is_malformed(text):
    assert isinstance(TAGS.parse(text, TOOLS), Malformed)


@given(st.lists(st.sampled_from(SEARCH_TEXT), max_size=40).map("".join) | st.text(max_size=300))
def test_no_tag_survives_inside_a_search_or_answer(text):
    action = TAGS.parse(text, TOOLS)
    body = ""
    if isinstance(action, ToolCalls):
        (call,) = action.calls
        body = call.arguments["query"]
    elif isinstance(action, FinalAnswer):
        body = action.text
    assert "<" not in body
    assert ">" not in body


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (
            "<think> times </think> <code> print(12*7) </code>",
            program("print(12*7)", "times"),
        ),
        ("I reason freely. <code>print(1)</code>\n", program("print(1)", "I reason freely.")),
        ("<code>\n```python\nprint(1)\n```\n</code>", program("print(1)")),
        (
            "<code>\n  x = 1\n  if x < 2:\n    print(x)\n</code>",
            program("x = 1\nif x < 2:\n  print(x)"),
        ),
        ("<code> x = 1\nprint(x) </code>", program("x = 1\nprint(x)")),
        (r"<think> </think> <answer> \boxed{84} </answer>", FinalAnswer(r"\boxed{84}")),
        ("<answer> 84 </answer>", FinalAnswer("84")),
    ],
)
def test_programs_are_read_with_their_line_breaks_and_free_thoughts(text, action):
    assert TAGS.parse(text, PYTHON) == action


@pytest.mark.parametrize(
    "text",
    [
        "",
        "84",
        "<code> </code>",
        "<answer> </answer>",
        "<code> print(1)",
        "</code> print(1) <code>",
        "<answer> 84 </answer> and more",
        "<interpreter> 84 </interpreter> <answer> 84 </answer>",
        "<code> print(1) </code> <interpreter>",
        "<think> <code> </think>",
    ],
)
def test_where_programs_are_taken_anything_else_is_malformed_too(text):
    assert isinstance(TAGS.parse(text, PYTHON), Malformed)


@given(
    st.lists(st.sampled_from([*TAGS.markers(PYTHON), "```", "x", "\n", "\\boxed{"])).map("".join)
)
def test_no_mixture_of_tags_makes_an_empty_program(text):
    action = TAGS.parse(text, PYTHON)
    if isinstance(action, ToolCalls):
        (call,) = action.calls
        assert call.arguments["code"].strip()


def test_tags_write_the_first_of_several_calls():
    two = ToolCalls((*search_call("", "lyon").calls, *search_call("", "paris").calls), "both")
    assert TAGS.write(two, TOOLS) == "<think> both </think> <search> lyon </search>"

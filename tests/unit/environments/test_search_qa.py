import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.environments import Answer, Malformed, Search, parse_action

TAGS = (
    "<think>",
    "</think>",
    "<search>",
    "</search>",
    "<answer>",
    "</answer>",
    "a",
    " ",
    "\n",
    "<",
)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<think> a </think> <search> lyon  country </search>", Search("lyon country")),
        ("<think></think><answer>Euro</answer>", Answer("Euro")),
        (" <think>x</think>\n<answer> new york </answer>\n", Answer("new york")),
    ],
)
def test_well_formed_actions_are_parsed(text, action):
    assert parse_action(text) == action


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
    assert isinstance(parse_action(text), Malformed)


@given(st.lists(st.sampled_from(TAGS), max_size=40).map("".join) | st.text(max_size=300))
def test_no_text_breaks_the_parser_and_no_tag_survives_inside_a_body(text):
    action = parse_action(text)
    body = getattr(action, "query", None) or getattr(action, "text", "")
    assert "<" not in body
    assert ">" not in body

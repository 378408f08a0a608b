"""The tags of Search-R1, and those of ReTool, in whose messages free text may stand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.config import Profile
from espalier.dialects import SYNTAXES
from espalier.dialects.dialect import Dialect
from espalier.policy.embedded import train_tokenizer
from espalier.records import FinalAnswer, Malformed, Message, ToolCall, ToolCalls
from espalier.records.message import ToolSpec
from espalier_environments.python_math import PythonMath
from espalier_search.synthesis.search_wording import search_call
from tests.factories.messages import LOOKUP, NOTE, THOUGHTS, note
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


NO_SEARCHES = (
    "", "<answer>Euro</answer>", "<think>x</think>", "<think>x</think><search>  </search>",
    "<think>x</think><search>a</answer>", "<think><think>x</think><answer>a</answer>",
    "<think>x</think><answer>a</answer><answer>b</answer>",
)  # fmt: skip
NO_PROGRAMS = (
    "84", "<code> </code>", "<answer> </answer>", "<code> print(1)", "</code> print(1) <code>",
    "<answer> 84 </answer> and more", "<interpreter> 84 </interpreter> <answer> 84 </answer>",
    "<code> print(1) </code> <interpreter>", "<think> <code> </think>",
)  # fmt: skip


@pytest.mark.parametrize(("tools", "texts"), [(TOOLS, NO_SEARCHES), (PYTHON, NO_PROGRAMS)])
def test_anything_else_is_malformed(tools, texts):
    for text in texts:
        assert isinstance(TAGS.parse(text, tools), Malformed), text


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
        ("<think> times </think> <code> print(12*7) </code>", program("print(12*7)", "times")),
        ("I reason freely. <code>print(1)</code>\n", program("print(1)", "I reason freely.")),
        ("<code>\n```python\nprint(1)\n```\n</code>", program("print(1)")),
        ("<code>\n  x = 1\n  if x:\n    x\n</code>", program("x = 1\nif x:\n  x")),
        ("<code> x = 1\nprint(x) </code>", program("x = 1\nprint(x)")),
        (r"<think> </think> <answer> \boxed{84} </answer>", FinalAnswer(r"\boxed{84}")),
        ("<answer> 84 </answer>", FinalAnswer("84")),
    ],
)
def test_programs_are_read_with_their_line_breaks_and_free_thoughts(text, action):
    assert TAGS.parse(text, PYTHON) == action


@given(
    st.lists(st.sampled_from([*TAGS.markers(PYTHON), "```", "x", "\n", "\\boxed{"])).map("".join)
)
def test_no_mixture_of_tags_makes_an_empty_program(text):
    action = TAGS.parse(text, PYTHON)
    if isinstance(action, ToolCalls):
        (call,) = action.calls
        assert call.arguments["code"].strip()


REACT = SYNTAXES["react"]
LINES = ("a", " ", "\n", ";", "x: y", *REACT.markers(TOOLS))
ANSWER_TOOL = ToolSpec(name="Answer", parameters=LOOKUP.parameters)


def looked_up(query, thought="look"):
    return ToolCalls((ToolCall(name="look_up", arguments={"query": query}),), thought)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Thought: a; search: lyon country\n", search_call("a", "lyon country")),
        ("Thought: a;search: lyon country\n\n", search_call("a", "lyon country")),
        ("search: lyon country", search_call(None, "lyon country")),
        (" Thought: ; Answer:  new  york \n", FinalAnswer("new york", "")),
        ("Answer: a; search: b", FinalAnswer("a; search: b", None)),
        ('search: "lyon" country', search_call(None, '"lyon" country')),
        ("Thought: Answer: a; Answer: b", FinalAnswer("b", "Answer: a")),
    ],
)
def test_a_line_is_thought_then_call_or_answer(text, action):
    assert REACT.parse(text, TOOLS) == action


@given(st.text(max_size=60), THOUGHTS)
def test_any_text_argument_is_read_as_it_was_written(query, thought):
    action = looked_up(query, thought)
    assert REACT.parse(REACT.write(action, (LOOKUP,)), (LOOKUP,)) == action


@given(st.lists(st.sampled_from(LINES), max_size=20).map("".join))
def test_a_thought_cannot_spell_the_action(thought):
    action = REACT.parse(REACT.write(search_call(thought, "lyon"), TOOLS), TOOLS)
    assert action.calls == search_call("", "lyon").calls


@given(st.lists(st.sampled_from(LINES), max_size=20).map("".join) | st.text(max_size=100))
def test_a_result_is_one_line_behind_its_label(content):
    written = REACT.write_result(content, TOOLS)
    assert written.index("\n") == len(written) - 1
    assert isinstance(REACT.parse(written, TOOLS), Malformed)


def test_tools_may_have_a_labels_name_and_arguments_several_lines():
    call = ToolCalls((ToolCall(name="Answer", arguments={"query": "x"}),), "ask")
    written = REACT.write(call, (ANSWER_TOOL,))
    assert written == "Thought: ask; call Answer: x\n"
    assert REACT.parse(written, (ANSWER_TOOL,)) == call
    assert REACT.parse("Answer: x", (ANSWER_TOOL,)) == FinalAnswer("x", None)
    lines = REACT.write(looked_up("a\n  b"), (LOOKUP,))
    assert lines == 'Thought: look; look_up: "a\\n  b"\n'


def test_a_line_break_in_a_longer_token_ends_too():
    tokenizer = train_tokenizer(["a b"] * 9, 400, REACT, TOOLS)
    dialect = Dialect(tokenizer, TOOLS)
    assert dialect.syntax is REACT
    ids = dialect.action_ids(search_call("a", "b"))
    assert dialect.ends_action(ids)
    assert not dialect.ends_action(ids[:-1])
    assert dialect.stop_texts == ("\n",), "for tokens such as two line breaks"
    own = dialect.with_tools((NOTE,))
    call = note("x", [1])
    assert own.parse(own.action_ids(call)) == call, "tools of a task are read"
    prompt = own.prompt_ids((Message(role="user", content="?"),))
    assert own.text(prompt).endswith("<|assistant|>")

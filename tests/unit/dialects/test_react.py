"""Turns of one line: what a thought, an argument or a result holds never ends or begins one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.dialects import SYNTAXES
from espalier.dialects.dialect import Dialect
from espalier.policy.embedded import train_tokenizer
from espalier.records import FinalAnswer, Malformed, Message, ToolCall, ToolCalls
from espalier.records.message import ToolSpec
from espalier_search.synthesis.search_wording import search_call
from tests.factories.messages import LOOKUP, NOTE, THOUGHTS, note
from tests.factories.tiny import TOOLS

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


@given(st.lists(st.sampled_from(LINES), max_size=20).map("".join))
def test_nothing_raises_and_nothing_spans_lines(text):
    action = REACT.parse(text, TOOLS)
    said = action.text if isinstance(action, FinalAnswer) else ""
    if isinstance(action, ToolCalls):
        (call,) = action.calls
        said = call.arguments["query"]
    assert "\n" not in said


def test_an_argument_of_several_lines_is_a_json_string():
    written = REACT.write(looked_up("a\n  b"), (LOOKUP,))
    assert written == 'Thought: look; look_up: "a\\n  b"\n'


def test_a_tool_may_have_the_name_of_a_label():
    call = ToolCalls((ToolCall(name="Answer", arguments={"query": "x"}),), "ask")
    written = REACT.write(call, (ANSWER_TOOL,))
    assert written == "Thought: ask; call Answer: x\n"
    assert REACT.parse(written, (ANSWER_TOOL,)) == call
    assert REACT.parse("Answer: x", (ANSWER_TOOL,)) == FinalAnswer("x", None)


def test_a_line_break_in_a_longer_token_ends_too():
    tokenizer = train_tokenizer(["a b"] * 9, 400, REACT, TOOLS)
    dialect = Dialect(tokenizer, TOOLS)
    assert dialect.syntax is REACT
    ids = dialect.action_ids(search_call("a", "b"))
    assert dialect.ends_action(ids)
    assert not dialect.ends_action(ids[:-1])
    assert dialect.stop_texts == ("\n",), "for tokens such as two line breaks"


def test_tools_of_a_task_are_told_and_read():
    tokenizer = train_tokenizer(["a b"] * 9, 400, REACT, TOOLS)
    dialect = Dialect(tokenizer, TOOLS).with_tools((NOTE,))
    call = note("x", [1])
    assert dialect.parse(dialect.action_ids(call)) == call
    prompt = dialect.prompt_ids((Message(role="user", content="?"),))
    assert dialect.text(prompt).endswith("<|assistant|>")

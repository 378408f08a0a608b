"""Where a message stops being one: its length, its depth, and what stands before and behind it."""

import json
from dataclasses import replace

import pytest

from espalier.dialects import SYNTAXES
from espalier.dialects.dialect import Dialect
from espalier.dialects.syntax import (
    json_at,
    named_tool,
    parsed_json,
    split_blocks,
    split_thought,
    typed_argument,
)
from espalier.records import FinalAnswer, Malformed, Message, ToolCall, ToolCalls
from espalier_search.search_qa import SearchQA
from tests.factories.byte_tokenizer import byte_tokenizer
from tests.factories.messages import BOTH, LOOKUP, NOTE

LONGEST = {name: 20_000 if name == "pythonic" else 100_000 for name in SYNTAXES}
CODE = replace(LOOKUP, name="code", takes_code=True)
CALLED = ToolCalls((ToolCall(name="note", arguments={"text": "x"}),))


def parsed(name, text, tools=BOTH):
    return SYNTAXES[name].parse(text, tools)


def fault(name, text, tools=BOTH):
    action = parsed(name, text, tools)
    assert isinstance(action, Malformed)
    return action.reason


@pytest.mark.contract
@pytest.mark.parametrize("name", SYNTAXES)
def test_a_message_may_be_as_long_as_the_bound(name):
    written = SYNTAXES[name].write(FinalAnswer("x", "t"), BOTH)
    longest = written + " " * (LONGEST[name] - len(written))
    assert parsed(name, longest) == FinalAnswer("x", "t")
    assert fault(name, longest + " ") == "too long"


@pytest.mark.parametrize("levels", [64, 65])
def test_a_value_is_nested_up_to_64_levels(levels):
    text = "[" * levels + "]" * levels
    if levels > 64:
        with pytest.raises(ValueError, match="nested"):
            parsed_json(text)
    else:
        assert json.dumps(parsed_json(text)) == text


def test_objects_nest_as_deep_as_lists():
    with pytest.raises(ValueError, match="nested"):
        parsed_json('{"a": ' * 65 + "1" + "}" * 65)
    with pytest.raises(ValueError, match="nested"):
        parsed_json("[" * 100_000)


def test_a_value_ends_where_its_text_does():
    assert json_at('x {"a": 1} y', 2) == ({"a": 1}, 10)
    assert parsed_json(' {"a": 1}\n') == {"a": 1}
    with pytest.raises(ValueError, match="behind"):
        parsed_json("1 2")


def test_blocks_are_cut_from_one_tag_to_the_next():
    assert split_blocks("(a)(b)", "(", ")") == (("a", "b"), "")
    assert split_blocks("1(a)2(b)3", "(", ")") == (("a", "b"), "123")
    assert split_blocks("1(a)2(b", "(", ")") == (("a",), "12(b")
    assert split_blocks(")a(", "(", ")") == ((), ")a(")
    assert split_blocks("<<a>>>b", "<<", ">>") == (("a",), ">b")
    assert split_blocks("", "(", ")") == ((), "")


def test_a_thought_stands_at_the_beginning_alone():
    assert split_thought(" <think>\n a\n</think> b ") == ("a", "b")
    assert split_thought("b <think> a </think>") == (None, "b <think> a </think>")
    assert split_thought("<think></think>b") == ("", "b")


@pytest.mark.parametrize(
    ("text", "name", "tool", "value"),
    [
        ("12", "text", NOTE, "12"),
        ("12", "data", NOTE, 12),
        ("12", "other", NOTE, 12),
        ("12", "text", None, 12),
        ("twelve", "data", NOTE, "twelve"),
        ("12", "x", replace(NOTE, parameters={"properties": 3}), 12),
        ("12", "x", replace(NOTE, parameters={"properties": {"x": {"type": "number"}}}), 12),
        ("12", "x", replace(NOTE, parameters={"properties": {"x": True}}), 12),
    ],
)
def test_an_argument_is_text_where_the_schema_says_so(text, name, tool, value):
    assert typed_argument(text, name, tool) == value


def test_a_tool_is_found_by_its_whole_name():
    assert named_tool("look_up", BOTH) is LOOKUP
    assert named_tool("look", BOTH) is None


def test_a_call_without_arguments_has_none():
    for name, text in (
        ("hermes", '<tool_call>{"name": "note"}</tool_call>'),
        ("llama3", '{"name": "note"}'),
        ("mistral", '[TOOL_CALLS][{"name": "note"}]'),
        ("qwen3_coder", "<tool_call><function=note></function></tool_call>"),
        ("pythonic", "[note()]"),
        ("tags", "<think>t</think><note>{}</note>"),
    ):
        (call,) = parsed(name, text).calls
        assert (call.name, call.arguments) == ("note", {}), name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "<tool_call>"),
        ("hermes", "a <think> b"),
        ("hermes", "a </think> b"),
        ("hermes", "x </tool_response>"),
        ("qwen3_coder", "</tool_call>"),
        ("qwen3_coder", "x <tool_response>"),
        ("mistral", "x [/TOOL_RESULTS]"),
    ],
)
def test_a_tag_that_stands_alone_is_no_answer(name, text):
    assert fault(name, text)


@pytest.mark.parametrize("text", ["{} ; x", '{"name": "note"};; {"name": "note"}'])
def test_between_calls_of_llama_stands_one_semicolon(text):
    assert isinstance(parsed("llama3", text), Malformed)


def test_braces_inside_a_message_of_llama_are_an_answer():
    assert parsed("llama3", "so {x}") == FinalAnswer("so {x}")
    call = '{"name": "note", "parameters": {"text": "x"}}'
    assert parsed("llama3", f"{call} ;{call};").calls == CALLED.calls * 2


@pytest.mark.parametrize("text", ["[1, 2]", "(note())", "[note()", "note(x=1)"])
def test_what_is_no_list_of_python_calls_is_an_answer(text):
    assert parsed("pythonic", text) == FinalAnswer(text)


def test_a_python_call_may_have_a_dotted_name():
    (call,) = parsed("pythonic", "[a.b.c(x=(1, [2]), y=None)]").calls
    assert (call.name, call.arguments) == ("a.b.c", {"x": [1, [2]], "y": None})


def test_a_parameter_keeps_its_lines_but_the_framing_ones():
    text = (
        "<tool_call><function=note><parameter=text>\n a\n\nb \n</parameter></function></tool_call>"
    )
    (call,) = parsed("qwen3_coder", text).calls
    assert call.arguments == {"text": " a\n\nb "}


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<code>```\nprint(1)\n```</code>", "print(1)"),
        ("<code>```print(1)```</code>", "```print(1)```"),
        ("<code>```python\nprint(1)</code>", "```python\nprint(1)"),
        ("<code>print(1)\n```</code>", "print(1)\n```"),
        ("<code>print('</code>')</code>", "print('</code>')"),
        ("<code>a</code> <answer> b </answer> </code>", "a</code> <answer> b </answer>"),
    ],
)
def test_a_program_loses_its_fence_where_it_has_both_ends(text, action):
    assert parsed("tags", text, (CODE,)).calls[0].arguments == {"query": action}


@pytest.mark.parametrize("text", ["<answer> </answer>", "<answer>", "<code>\n</code>", "x"])
def test_between_free_thoughts_something_must_be_said(text):
    assert fault("tags", text, (CODE,))


def test_of_call_and_answer_the_first_counts():
    assert parsed("tags", "a <answer> b </answer>", (CODE,)) == FinalAnswer("b", "a")
    mixed = parsed("tags", "<answer> <code> b </code> </answer>", (CODE,))
    assert mixed == FinalAnswer("<code> b </code>")


def test_only_a_program_among_the_tools_frees_the_thoughts():
    freely = "so: <note>{}</note>"
    assert fault("tags", freely)
    assert parsed("tags", freely, (*BOTH, CODE)) == ToolCalls((ToolCall(name="note"),), "so:")
    strictly = "<think>so</think><look_up>a  b</look_up>"
    (call,) = parsed("tags", strictly).calls
    assert call.arguments == {"query": "a b"}


def test_what_identifies_a_result_reaches_the_template():
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.tool_call_id }}:{{ m.content }}"
        "<|im_end|>{% endfor %}"
    )
    tokenizer = byte_tokenizer(template, ("<|im_start|>", "<|im_end|>"))
    dialect = Dialect(tokenizer, BOTH, name="hermes")
    named = (Message(role="tool", content="7", call_id="c1"), Message(role="tool", content="8"))
    assert dialect.text(dialect.result_ids(named)) == (
        "<|im_start|>tool c1:7<|im_end|><|im_start|>tool :8<|im_end|>"
    )


def test_instructions_stand_before_the_last_message_of_the_prompt():
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    dialect = Dialect(byte_tokenizer(template), (LOOKUP,), instructions=SearchQA.instructions)
    prompt = (Message(role="system", content="S"), Message(role="user", content="Q"))
    text = dialect.text(dialect.prompt_ids(prompt))
    assert text.startswith(f"[system] S[user] {SearchQA.instructions}")
    assert text.endswith("Q")

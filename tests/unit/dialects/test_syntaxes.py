"""The contract of every syntax: what it writes it reads again, and nothing else is a call."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from espalier.dialects import SYNTAXES
from espalier.dialects.syntax import (
    MAX_CALLS,
    parsed_json,
    typed_argument,
    with_thought,
)
from espalier.records import FinalAnswer, Malformed, PolicyError, ToolCall, ToolCalls
from espalier.records.message import ToolSpec
from tests.factories.messages import ACTIONS, ANSWERS, BOTH, CALLS, NOTE, THOUGHTS, note

NAMES = list(SYNTAXES)
OTHERS = [name for name in NAMES if not SYNTAXES[name].inline_results]
"""Those whose messages end with a token, so that one may hold several calls, or no thought."""

INLINE = [name for name in NAMES if name not in OTHERS]


@pytest.mark.contract
@pytest.mark.parametrize("name", NAMES)
@given(action=ACTIONS)
@settings(max_examples=150, deadline=None)
def test_what_is_written_is_read_again(name, action):
    syntax = SYNTAXES[name]
    assert syntax.parse(syntax.write(action, BOTH), BOTH) == action


@pytest.mark.contract
@pytest.mark.parametrize("name", OTHERS)
@given(calls=st.lists(CALLS, min_size=1, max_size=4), thought=st.none() | THOUGHTS)
@settings(max_examples=100, deadline=None)
def test_several_calls_of_one_message_are_read_in_order(name, calls, thought):
    syntax, action = SYNTAXES[name], ToolCalls(tuple(calls), thought)
    assume(name != "qwen3_coder" or "</" not in str(calls))  # it has no escapes
    assert syntax.parse(syntax.write(action, BOTH), BOTH) == action


@pytest.mark.contract
@pytest.mark.parametrize("name", NAMES)
def test_an_argument_may_speak_of_results_and_tags(name):
    syntax = SYNTAXES[name]
    spelled = "".join(m for m in syntax.markers(BOTH) if name != "qwen3_coder" or m[1] != "/")
    for text in (spelled, "<tool_response>", "[TOOL_RESULTS]"):
        action = note(text, {"rows": [1]})
        assert syntax.parse(syntax.write(action, BOTH), BOTH) == action


@pytest.mark.contract
@pytest.mark.parametrize("name", OTHERS)
def test_a_message_holds_so_many_calls_and_no_more(name):
    syntax = SYNTAXES[name]
    (call,) = note("x").calls
    fits, too_many = (ToolCalls((call,) * (MAX_CALLS + more)) for more in (0, 1))
    assert syntax.parse(syntax.write(fits, BOTH), BOTH) == fits
    refused = syntax.parse(syntax.write(too_many, BOTH), BOTH)
    assert refused.reason == f"{MAX_CALLS + 1} calls in one message, of at most {MAX_CALLS}"


@pytest.mark.contract
@pytest.mark.parametrize("name", OTHERS)
@given(text=ANSWERS)
def test_a_message_without_calls_is_the_final_answer(name, text):
    assert SYNTAXES[name].parse(text, BOTH) == FinalAnswer(text)


@pytest.mark.contract
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["", " \n", "<think>x</think>", "x" * 100_001])
def test_an_empty_or_endless_message_is_malformed(name, text):
    action = SYNTAXES[name].parse(text, BOTH)
    assert isinstance(action, Malformed)
    assert action.reason
    assert action.text == text


@pytest.mark.contract
@pytest.mark.parametrize("name", OTHERS)
def test_a_result_is_never_read_as_a_call(name):
    syntax = SYNTAXES[name]
    result = syntax.write_result(syntax.write(note("x"), BOTH), BOTH)
    assert "x" in result
    assert not isinstance(syntax.parse(syntax.write_result("7", BOTH), BOTH), ToolCalls)


@pytest.mark.contract
@pytest.mark.parametrize("name", NAMES)
def test_markers_are_distinct_and_hold_those_that_end_a_message(name):
    syntax = SYNTAXES[name]
    markers = syntax.markers(BOTH)
    assert len(set(markers)) == len(markers)
    assert set(syntax.stop_texts(BOTH)) <= set(markers)
    assert bool(syntax.stop_texts(BOTH)) is syntax.inline_results


@pytest.mark.contract
@pytest.mark.parametrize("name", NAMES)
def test_instructions_name_every_tool(name):
    told = SYNTAXES[name].instructions(BOTH)
    assert "note" in told
    assert "look_up" in told


@pytest.mark.contract
@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_that_of_the_registry(name):
    assert SYNTAXES[name].name == name


MALFORMED = {
    "hermes": [
        ("<tool_call>{</tool_call>", "not JSON"),
        ('<tool_call>{"name": "note"}', "opened or closed alone"),
        ("x </tool_call>", "opened or closed alone"),
        ("<think>x", "opened or closed alone"),
        ('<tool_call>{"arguments": {}}</tool_call>', 'without "name"'),
        ('<tool_call>{"name": ""}</tool_call>', 'without "name"'),
        ('<tool_call>{"name": "note", "arguments": 3}</tool_call>', "no object"),
        ('<tool_call>{"name": "note", "arguments": "{"}</tool_call>', "not JSON"),
        ('<tool_call>{"name": "note", "arguments": {"x": NaN}}</tool_call>', "NaN is not JSON"),
        ('<tool_call>{"name": "note", "arguments": {"x": 1e999}}</tool_call>', "too large"),
        (r'<tool_call>{"name": "note", "arguments": {"x": "\ud800"}}</tool_call>', "surrogate"),
        ("<tool_response>7</tool_response>", "the tool would say"),
        ('<tool_call>{"name": "a"}</tool_call><tool_call>3</tool_call>', 'without "name"'),
    ],
    "llama3": [
        ('{"name": "note"', "not JSON"),
        ('{"name": "note", "parameters": [1]}', "no object"),
        ('{"name": "note", "parameters": {"x": NaN}}', "NaN is not JSON"),
        ('{"name": "note"} and more', "text behind the call"),
        ('{"parameters": {}}', 'without "name"'),
        ("<|python_tag|>", "no call"),
        ("<|python_tag|>print(1)", "not JSON"),
    ],
    "mistral": [
        ("[TOOL_CALLS]", "not JSON"),
        ("[TOOL_CALLS] []", "no list"),
        ('[TOOL_CALLS] {"name": "note"}', "no list"),
        ("[TOOL_CALLS] [3]", 'without "name"'),
        ("[TOOL_CALLS][ARGS]{}", "not JSON"),
        ("[TOOL_CALLS]note[ARGS]{", "not JSON"),
        ("[TOOL_CALLS]note[ARGS]3", "no object"),
        ("[TOOL_CALLS]two words[ARGS]{}", "without a name"),
        ("[TOOL_RESULTS] 7[/TOOL_RESULTS]", "the tool would say"),
    ],
    "qwen3_coder": [
        ("<tool_call></tool_call>", "one function element"),
        ("<tool_call><function=></function></tool_call>", "one function element"),
        ("<tool_call><function=note>x</function></tool_call>", "outside of its parameters"),
        ("<function=note></function>", "opened or closed alone"),
        ("<tool_call><function=note></function>", "opened or closed alone"),
        (
            "<tool_call><function=note><parameter=>x</parameter></function></tool_call>",
            "without a name",
        ),
        ("<tool_response>7</tool_response>", "the tool would say"),
    ],
    "pythonic": [
        ("[note(]), ()]", "not Python"),
        ("[note(3)]", "argument without a name"),
        ("[note(**x)]", "argument without a name"),
        ("[note(x=y)]", "no literal"),
        ("[note(x=f())]", "no literal"),
        ("[note(x={1, 2})]", "no literal"),
        ("[note(x=1e999)]", "no literal"),
        ("[f()(x=1)]", "no call of a named function"),
        ("[3, (4)]", "no call of a named function"),
        ("[f() for x in (y)]", "no list"),
    ],
    "tags": [
        ("<think>x</think><note>{</note>", "not JSON"),
        ("<think>x</think><note>[1]</note>", "no JSON object"),
        ("<think>x</think><note> </note>", "empty note block"),
        ("<think>x</think><forget>y</forget>", "one call or answer block"),
    ],
    "react": [
        ("Thought: x; note: {", "not JSON"),
        ("Thought: x; note: [1]", "no JSON object"),
        ("Thought: x; note: ", "nothing behind note:"),
        ("Thought: x; forget: y", "neither a call nor an answer"),
        ("Thought: x\nAnswer: y", "more than one line"),
        ("country; Answer: y", "no Thought: before Answer:"),
        ("Result: 7", "the tool would say"),
    ],
}


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [(name, text, reason) for name, cases in MALFORMED.items() for text, reason in cases],
)
def test_a_broken_message_says_what_is_wrong(name, text, reason):
    action = SYNTAXES[name].parse(text, BOTH)
    assert isinstance(action, Malformed)
    assert reason in action.reason


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "note", "arguments": "{\\"text\\": \\"x\\"}"}</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "note", "parameters": {"text": "x"}}</tool_call>'),
        ("llama3", '{"name": "note", "arguments": {"text": "x"}}'),
        ("llama3", '<|python_tag|>{"name": "note", "parameters": {"text": "x"}}'),
        ("mistral", '[TOOL_CALLS]note[ARGS]{"text": "x"}'),
        ("pythonic", "[note(text='x',)]"),
        ("pythonic", "<|python_start|>[note(text='x')]<|python_end|>"),
        (
            "qwen3_coder",
            "<tool_call><function=note><parameter=text>x</parameter></function></tool_call>",
        ),
    ],
)
def test_other_spellings_of_the_published_models_are_read_too(name, text):
    action = SYNTAXES[name].parse(text, BOTH)
    assert action == ToolCalls((ToolCall(name="note", arguments={"text": "x"}),))


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])
def test_text_beside_a_call_is_kept_as_its_thought(name):
    syntax, call = SYNTAXES[name], replace(note("x"), thought=None)
    said = f"I look. {syntax.write(call, BOTH)}"
    assert syntax.parse(said, BOTH) == replace(call, thought="I look.")


def test_mistrals_call_id_may_stand_between_name_and_arguments():
    written = '[TOOL_CALLS]note[CALL_ID]abcdefghi[ARGS]{"text": "x"}'
    call = ToolCall(name="note", arguments={"text": "x"}, call_id="abcdefghi")
    assert SYNTAXES["mistral"].parse(written, BOTH) == ToolCalls((call,))


TYPED = ToolSpec(
    name="book",
    description="",
    parameters={
        "type": "object",
        "properties": {
            "flag": {"type": "boolean"},
            "rows": {"type": "array"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "size": {"$ref": "#/$defs/Size"},
            "count": {"type": ["integer", "null"]},
        },
        "$defs": {"Size": {"enum": ["1", "2"], "type": "string"}},
    },
)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("flag", "True", True),
        ("flag", "false", False),
        ("flag", "maybe", "maybe"),
        ("rows", "['a', 1]", ["a", 1]),
        ("rows", '["a", 1]', ["a", 1]),
        ("rows", "[f()]", "[f()]"),
        ("rows", "9" * 400 + "+1j", "9" * 400 + "+1j"),
        ("rows", "[" * 20_001, "[" * 20_001),
        ("note", "123", "123"),
        ("note", "null", None),
        ("size", "1", "1"),
        ("count", "12", 12),
        ("other", "12", 12),
    ],
)
def test_an_argument_in_plain_text_is_read_by_its_schema(name, text, value):
    assert typed_argument(text, name, TYPED) == value


@pytest.mark.parametrize(("references", "value"), [(8, "12"), (9, 12)])
def test_a_schema_is_followed_so_deep_and_no_deeper(references, value):
    definitions = {f"D{n}": {"$ref": f"#/$defs/D{n + 1}"} for n in range(references)}
    definitions[f"D{references - 1}"] = {"type": "string"}
    properties = {"deep": {"$ref": "#/$defs/D0"}, "loop": {"$ref": "#/$defs/L"}}
    parameters = {"properties": properties, "$defs": {**definitions, "L": {"$ref": "#/$defs/L"}}}
    tool = ToolSpec(name="book", description="", parameters=parameters)
    assert typed_argument("12", "deep", tool) == value
    assert typed_argument("12", "loop", tool) == 12


def test_mistrals_thought_may_stand_before_the_calls_and_ids_survive():
    call = ToolCall(name="note", arguments={"text": "[ARGS]"}, call_id="abcdefghi")
    mistral = SYNTAXES["mistral"]
    written = mistral.write(ToolCalls((call,)), BOTH)
    assert mistral.parse(f"I look. {written}", BOTH) == ToolCalls((call,), "I look.")


def test_qwen3_coder_keeps_text_where_the_schema_says_so():
    coder = SYNTAXES["qwen3_coder"]
    action = note("12", data=12)
    assert coder.parse(coder.write(action, BOTH), BOTH) == action


def test_arguments_between_tags_keep_blanks_and_angle_brackets():
    tags, action = SYNTAXES["tags"], note("a  <b> </note>\n")
    written = tags.write(action, (NOTE,))
    assert written.count("<") == 4
    assert tags.parse(written, (NOTE,)) == action


@pytest.mark.parametrize("name", INLINE)
def test_calls_by_a_tools_name_need_that_tool(name):
    with pytest.raises(PolicyError, match=r"forget.*note"):
        SYNTAXES[name].write(ToolCalls((ToolCall(name="forget"),), ""), (NOTE,))


def test_a_thought_is_written_before_the_rest():
    assert with_thought(None, "b") == "b"
    assert with_thought("", "b") == "<think>\n\n</think>\n\nb"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("[TOOL_CALLS]note[ARGS]{}", [("note", {}, "")]),
        ("[TOOL_CALLS] a.b-c [ARGS] {} ", [("a.b-c", {}, "")]),
        ('[TOOL_CALLS]a[ARGS]{"x": 1}[TOOL_CALLS]b[ARGS]{}', [("a", {"x": 1}, ""), ("b", {}, "")]),
        ('[TOOL_CALLS] [{"name": "a", "id": "123456789"}]', [("a", {}, "123456789")]),
        ('[TOOL_CALLS] [{"name": "a", "id": 7}]', [("a", {}, "")]),
        ('[TOOL_CALLS] [{"name": "a", "id": null}]', [("a", {}, "")]),
        ('[TOOL_CALLS] [{"name": "a", "arguments": "{}"}]', [("a", {}, "")]),
        (
            '[TOOL_CALLS] [{"name": "a", "arguments": {"x": "[ARGS] [TOOL_CALLS]"}}]',
            [("a", {"x": "[ARGS] [TOOL_CALLS]"}, "")],
        ),
    ],
)
def test_mistral_reads_both_ways_of_writing_calls(text, calls):
    found = SYNTAXES["mistral"].parse(text, BOTH).calls
    assert [(call.name, call.arguments, call.call_id) for call in found] == calls


def test_mistral_takes_text_before_a_call_for_the_thought():
    parse = SYNTAXES["mistral"].parse
    assert parse(" so [TOOL_CALLS]a[ARGS]{}", BOTH).thought == "so"
    assert parse("<think>x</think> so [TOOL_CALLS]a[ARGS]{}", BOTH).thought == "x"
    assert parse(" [TOOL_CALLS]a[ARGS]{}", BOTH).thought is None


def test_mistral_writes_an_id_where_there_is_one():
    write = SYNTAXES["mistral"].write
    call = ToolCall(name="note", arguments={}, call_id="123456789")
    assert '"id": "123456789"' in write(ToolCalls((call,)), BOTH)
    assert "id" not in write(ToolCalls((ToolCall(name="note", arguments={}),)), BOTH)


def test_a_large_number_is_named_in_part():
    with pytest.raises(ValueError, match="1e999000000000000000 ") as refused:
        parsed_json("1e999" + "0" * 30)
    assert len(str(refused.value)) < 40

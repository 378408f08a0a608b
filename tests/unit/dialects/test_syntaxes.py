"""The contract of every syntax: what it writes it reads again, and nothing else is a call."""

import json
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from espalier.dialects import SYNTAXES
from espalier.dialects.dialect import Dialect
from espalier.dialects.syntax import MAX_CALLS, json_at, parsed_json, typed_argument
from espalier.records import FinalAnswer, Malformed, Message, PolicyError, ToolCall, ToolCalls
from espalier.records.message import ToolSpec
from espalier_search.search_qa import SearchQA
from tests.factories.byte_tokenizer import byte_tokenizer
from tests.factories.messages import ACTIONS, ANSWERS, BOTH, CALLS, LOOKUP, NOTE, THOUGHTS, note

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
def test_markers_are_distinct_and_instructions_name_every_tool(name):
    syntax = SYNTAXES[name]
    assert syntax.name == name
    markers = syntax.markers(BOTH)
    assert len(set(markers)) == len(markers)
    assert set(syntax.stop_texts(BOTH)) <= set(markers)
    assert bool(syntax.stop_texts(BOTH)) is syntax.inline_results
    assert all(tool in syntax.instructions(BOTH) for tool in ("note", "look_up"))


MALFORMED = {
    "hermes": (
        "<tool_call>{</tool_call>", '<tool_call>{"name": "note"}', "x </tool_call>", "<tool_call>",
        "<think>x", "a <think> b", "a </think> b", "x </tool_response>",
        '<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"name": ""}</tool_call>',
        '<tool_call>{"name": "note", "arguments": 3}</tool_call>',
        '<tool_call>{"name": "note", "arguments": "{"}</tool_call>',
        '<tool_call>{"name": "note", "arguments": {"x": NaN}}</tool_call>',
        '<tool_call>{"name": "note", "arguments": {"x": 1e999}}</tool_call>',
        r'<tool_call>{"name": "note", "arguments": {"x": "\ud800"}}</tool_call>',
        "<tool_response>7</tool_response>",
        '<tool_call>{"name": "a"}</tool_call><tool_call>3</tool_call>',
    ),
    "llama3": (
        '{"name": "note"', '{"name": "note", "parameters": [1]}', '{"name": "note"} and more',
        '{"name": "note", "parameters": {"x": NaN}}', '{"parameters": {}}', "<|python_tag|>",
        "<|python_tag|>print(1)",
    ),
    "mistral": (
        "[TOOL_CALLS]", "[TOOL_CALLS] []", '[TOOL_CALLS] {"name": "note"}', "[TOOL_CALLS] [3]",
        "[TOOL_CALLS][ARGS]{}", "[TOOL_CALLS]note[ARGS]{", "[TOOL_CALLS]note[ARGS]3",
        "[TOOL_CALLS]two words[ARGS]{}", "[TOOL_RESULTS] 7[/TOOL_RESULTS]", "x [/TOOL_RESULTS]",
    ),
    "qwen3_coder": (
        "<tool_call></tool_call>", "<tool_call><function=></function></tool_call>", "</tool_call>",
        "<tool_call><function=note>x</function></tool_call>", "<function=note></function>",
        "<tool_call><function=note></function>", "<tool_response>7</tool_response>",
        "<tool_call><function=a><parameter=>x</parameter></function></tool_call>",
        "x <tool_response>",
    ),
    "pythonic": (
        "[note(]), ()]", "[note(3)]", "[note(**x)]", "[note(x=y)]", "[note(x=f())]",
        "[note(x={1, 2})]", "[note(x=1e999)]", "[f()(x=1)]", "[3, (4)]", "[f() for x in (y)]",
    ),
    "tags": (
        "<think>x</think><note>{</note>", "<think>x</think><note>[1]</note>",
        "<think>x</think><note> </note>", "<think>x</think><forget>y</forget>",
    ),
    "react": (
        "Thought: x; note: {", "Thought: x; note: [1]", "Thought: x; note: ",
        "Thought: x; forget: y", "Thought: x\nAnswer: y", "country; Answer: y", "Result: 7",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in MALFORMED.items() for text in texts]
)
def test_a_broken_message_is_neither_call_nor_answer(name, text):
    action = SYNTAXES[name].parse(text, BOTH)
    assert isinstance(action, Malformed)
    assert action.reason


CODER_CALL = "<function=note><parameter=text>x</parameter></function>"


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
        ("qwen3_coder", f"<tool_call>{CODER_CALL}</tool_call>"),
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
            "odd": True,
            "level": {"enum": ["1", "2"]},
            "mode": {"const": "5"},
            "code": {"allOf": [{"type": "string"}, {"maxLength": 9}]},
            "kind": {"enum": [1, "1"]},
            "step": {"enum": [1, 2]},
        },
        "$defs": {"Size": {"enum": ["1", "2"], "type": "string"}},
    },
)


READ = (
    ("flag", "True", True), ("flag", "false", False), ("flag", "maybe", "maybe"),
    ("rows", "['a', 1]", ["a", 1]), ("rows", '["a", 1]', ["a", 1]), ("rows", "[f()]", "[f()]"),
    ("rows", "9" * 400 + "+1j", "9" * 400 + "+1j"), ("rows", "[" * 20_001, "[" * 20_001),
    ("note", "123", "123"), ("note", "null", None), ("size", "1", "1"), ("count", "12", 12),
    ("odd", "12", 12), ("other", "12", 12), ("level", "1", "1"), ("mode", "5", "5"),
    ("code", "12", "12"), ("kind", "1", "1"), ("step", "2", 2),
)  # fmt: skip


@pytest.mark.parametrize(("name", "text", "value"), READ)
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


POINTED = {
    "properties": {
        "size": {"$ref": "#/definitions/Size"},
        "again": {"$ref": "#/properties/size"},
        "odd": {"$ref": "#/definitions/a~1b%20c"},
        "either": {"anyOf": [{"type": "integer"}, {"$ref": "#/definitions/Size/anyOf/0"}]},
        "number": {"$ref": "#/definitions/Number"},
        "lost": {"$ref": "#/definitions/Lost"},
        "remote": {"$ref": "https://example.org/Size"},
        "tree": {"anyOf": [{"$ref": "#/definitions/Tree"}] * 9},
        "all": {"$ref": "#"},
    },
    "definitions": {
        "Size": {"anyOf": [{"type": "string"}]},
        "a/b c": {"type": "string"},
        "Number": {"type": "integer"},
        "Tree": {"anyOf": [*[{"$ref": "#/definitions/Tree"}] * 9, {"type": "string"}]},
    },
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("size", "5"), ("again", "5"), ("odd", "5"), ("either", "5"), ("number", 5)),
        *(("lost", 5), ("remote", 5), ("tree", "5"), ("all", 5)),
    ],
)
def test_a_reference_is_followed_to_wherever_it_points(name, value):
    tool = ToolSpec(name="book", description="", parameters=POINTED)
    assert typed_argument("5", name, tool) == value


def test_arguments_between_tags_keep_blanks_and_angle_brackets():
    tags, action = SYNTAXES["tags"], note("a  <b> </note>\n")
    written = tags.write(action, (NOTE,))
    assert written.count("<") == 4
    assert tags.parse(written, (NOTE,)) == action


@pytest.mark.parametrize("name", INLINE)
def test_calls_by_a_tools_name_need_that_tool(name):
    with pytest.raises(PolicyError, match=r"forget.*note"):
        SYNTAXES[name].write(ToolCalls((ToolCall(name="forget"),), ""), (NOTE,))


BOTH_WAYS = (
    ("[TOOL_CALLS]note[ARGS]{}", [("note", {}, "")], None),
    (" so [TOOL_CALLS] a.b-c [ARGS] {} ", [("a.b-c", {}, "")], "so"),
    ("<think>x</think> so [TOOL_CALLS]a[CALL_ID]abc[ARGS]{}", [("a", {}, "abc")], "x"),
    (
        '[TOOL_CALLS]a[ARGS]{"x": 1}[TOOL_CALLS]b[ARGS]{}',
        [("a", {"x": 1}, ""), ("b", {}, "")],
        None,
    ),
    ('[TOOL_CALLS] [{"name": "a", "id": "123456789"}]', [("a", {}, "123456789")], None),
    ('[TOOL_CALLS] [{"name": "a", "id": 7, "arguments": "{}"}]', [("a", {}, "")], None),
    (
        'so [TOOL_CALLS] [{"name": "a", "arguments": {"x": "[ARGS] [TOOL_CALLS]"}}]',
        [("a", {"x": "[ARGS] [TOOL_CALLS]"}, "")],
        "so",
    ),
)


@pytest.mark.parametrize(("text", "calls", "thought"), BOTH_WAYS)
def test_mistral_reads_both_ways_of_writing_calls(text, calls, thought):
    mistral = SYNTAXES["mistral"]
    found = mistral.parse(text, BOTH)
    assert [(call.name, call.arguments, call.call_id) for call in found.calls] == calls
    assert found.thought == thought
    assert mistral.parse(mistral.write(found, BOTH), BOTH) == found
    assert ('"id"' in mistral.write(found, BOTH)) == any(call_id for *_, call_id in calls)


LONGEST = {name: 20_000 if name == "pythonic" else 100_000 for name in SYNTAXES}
CODE = replace(LOOKUP, name="code", takes_code=True)


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


def test_a_value_is_nested_up_to_64_levels():
    deepest = "[" * 64 + "]" * 64
    assert json.dumps(parsed_json(deepest)) == deepest
    for text in (f"[{deepest}]", '{"a": ' * 65 + "1" + "}" * 65, "[" * 100_000):
        with pytest.raises(ValueError, match="nested"):
            parsed_json(text)


def test_a_value_ends_where_its_text_does():
    assert json_at('x {"a": 1} y', 2) == ({"a": 1}, 10)
    assert parsed_json(' {"a": 1}\n') == {"a": 1}
    with pytest.raises(ValueError, match="behind"):
        parsed_json("1 2")


WITHOUT_ARGUMENTS = {
    "hermes": '<tool_call>{"name": "note"}</tool_call>',
    "llama3": '{"name": "note"}',
    "mistral": '[TOOL_CALLS][{"name": "note"}]',
    "qwen3_coder": "<tool_call><function=note></function></tool_call>",
    "pythonic": "[note()]",
    "tags": "<think>t</think><note>{}</note>",
}


@pytest.mark.parametrize(("name", "text"), WITHOUT_ARGUMENTS.items())
def test_a_call_without_arguments_has_none(name, text):
    assert parsed(name, text).calls == (ToolCall(name="note", arguments={}),)


def test_between_calls_of_llama_stands_one_semicolon():
    for text in ("{} ; x", '{"name": "note"};; {"name": "note"}'):
        assert fault("llama3", text)
    call = '{"name": "note", "parameters": {"text": "x"}}'
    called = ToolCall(name="note", arguments={"text": "x"})
    assert parsed("llama3", f"{call} ;{call};").calls == (called, called)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3", "so {x}"),
        *(("pythonic", text) for text in ("[1, 2]", "(note())", "[note()", "note(x=1)")),
    ],
)
def test_what_only_resembles_calls_is_an_answer(name, text):
    assert parsed(name, text) == FinalAnswer(text)


def test_a_python_call_may_have_a_dotted_name():
    (call,) = parsed("pythonic", "[a.b.c(x=(1, [2]), y=None)]").calls
    assert (call.name, call.arguments) == ("a.b.c", {"x": [1, [2]], "y": None})


def test_a_parameter_keeps_its_lines_but_the_framing_ones():
    parameter = "<parameter=text>\n a\n\nb \n</parameter>"
    text = f"<tool_call><function=note>{parameter}</function></tool_call>"
    assert parsed("qwen3_coder", text).calls[0].arguments == {"text": " a\n\nb "}


FENCED = {
    "```\nprint(1)\n```": "print(1)",
    "```print(1)```": "```print(1)```",
    "```python\nprint(1)": "```python\nprint(1)",
    "print(1)\n```": "print(1)\n```",
    "print('</code>')": "print('</code>')",
    "a</code> <answer> b </answer> ": "a</code> <answer> b </answer>",
}


@pytest.mark.parametrize(("written", "program"), FENCED.items())
def test_a_program_loses_its_fence_where_it_has_both_ends(written, program):
    (call,) = parsed("tags", f"<code>{written}</code>", (CODE,)).calls
    assert call.arguments == {"query": program}


def test_between_free_thoughts_call_or_answer_must_be_said():
    for text in ("<answer> </answer>", "<answer>", "<code>\n</code>", "x"):
        assert fault("tags", text, (CODE,))
    assert parsed("tags", "a <answer> b </answer>", (CODE,)) == FinalAnswer("b", "a")
    mixed = parsed("tags", "<answer> <code> b </code> </answer>", (CODE,))
    assert mixed == FinalAnswer("<code> b </code>"), "the first counts"


def test_only_a_program_among_the_tools_frees_the_thoughts():
    freely = "so: <note>{}</note>"
    assert fault("tags", freely)
    assert parsed("tags", freely, (*BOTH, CODE)) == ToolCalls((ToolCall(name="note"),), "so:")
    strictly = "<think>so</think><look_up>a  b</look_up>"
    (call,) = parsed("tags", strictly).calls
    assert call.arguments == {"query": "a b"}


def test_instructions_stand_before_the_last_message_of_the_prompt():
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    dialect = Dialect(byte_tokenizer(template), (LOOKUP,), instructions=SearchQA.instructions)
    prompt = (Message(role="system", content="S"), Message(role="user", content="Q"))
    text = dialect.text(dialect.prompt_ids(prompt))
    assert text.startswith(f"[system] S[user] {SearchQA.instructions}")
    assert text.endswith("Q")


INNER_MARKS = {
    "hermes": ("</tool_call>", "<tool_call>", "</tool_call> <tool_call>", "<tool_response>"),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[TOOL_CALLS]f[ARGS]{}", "[CALL_ID]"),
}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("name", "mark"), [(name, mark) for name, marks in INNER_MARKS.items() for mark in marks]
)
def test_a_mark_inside_of_a_json_string_ends_no_call(name, mark, count):
    """Models write them without escapes, in contrast to `write`."""
    value = f'{{"text": "a {mark} \\"b"}}'
    written = {
        "hermes": f'<tool_call>\n{{"name": "note", "arguments": {value}}}\n</tool_call>\n',
        "mistral": f"[TOOL_CALLS]note[ARGS]{value}",
    }
    found = SYNTAXES[name].parse(written[name] * count, BOTH)
    assert isinstance(found, ToolCalls)
    assert [call.arguments for call in found.calls] == [{"text": f'a {mark} "b'}] * count


@pytest.mark.parametrize(
    "text",
    [
        *("[TOOL_CALLS]note[ARGS]{}[TOOL_CALLS]", "[TOOL_CALLS]note[ARGS]{} more"),
        *("[TOOL_CALLS]note[ARGS]{}note[ARGS]{}", '[TOOL_CALLS]note[ARGS]{"text": "[TOOL_CALLS]'),
    ],
)
def test_calls_of_mistral_that_do_not_end_are_malformed(text):
    assert isinstance(SYNTAXES["mistral"].parse(text, BOTH), Malformed)


@pytest.mark.parametrize("body", ["[]", '{"name": "note", "arguments": {}}', "7"])
def test_calls_of_mistral_that_are_no_list_are_told(body):
    assert "no list" in fault("mistral", f"[TOOL_CALLS]{body}")


def _parameters(*lines):
    body = "\n".join(lines)
    return f"<tool_call>\n<function=note>\n{body}\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("lines", "arguments"),
    [
        (
            ("<parameter=text>", "x", "<parameter=data>", "1", "</parameter>"),
            {"text": "x", "data": 1},
        ),
        (("<parameter=text>", "<parameter=data>", "1", "</parameter>"), {"text": "", "data": 1}),
        (
            ("<parameter=a>", "x", "<parameter=b>", "y", "<parameter=c>", "z", "</parameter>"),
            {"a": "x", "b": "y", "c": "z"},
        ),
        (("<parameter=text>", "a <parameter=b> c", "</parameter>"), {"text": "a <parameter=b> c"}),
    ],
)
def test_the_next_parameter_ends_one_that_is_not_closed(lines, arguments):
    (call,) = SYNTAXES["qwen3_coder"].parse(_parameters(*lines), BOTH).calls
    assert call.arguments == arguments


def _coder_arguments(body):
    call = f"<tool_call><function=note>{body}</function></tool_call>"
    (found,) = SYNTAXES["qwen3_coder"].parse(call, BOTH).calls
    return found.arguments


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("<parameter=text>x<parameter=data>1</parameter>", {"text": "x", "data": 1}),
        ("<parameter=data>1<parameter=text>x</parameter>", {"text": "x", "data": 1}),
        ("<parameter=text>x <parameter=data>\n1\n</parameter>", {"text": "x ", "data": 1}),
        ("<parameter=text><parameter=data>1</parameter>", {"text": "", "data": 1}),
        (
            "<parameter=text>a <parameter=data> c</parameter><parameter=data>1</parameter>",
            {"text": "a <parameter=data> c", "data": 1},
        ),
        ("<parameter=text>a<parameter=text>b</parameter>", {"text": "a<parameter=text>b"}),
        ("<parameter=text>a<parameter=other>b</parameter>", {"text": "a<parameter=other>b"}),
    ],
)
def test_a_tag_in_a_line_begins_a_left_out_parameter(body, arguments):
    assert _coder_arguments(body) == arguments


def test_a_last_parameter_that_is_not_closed_is_malformed():
    text = _parameters("<parameter=text>", "x", "</parameter>", "<parameter=data>", "y")
    assert isinstance(SYNTAXES["qwen3_coder"].parse(text, BOTH), Malformed)

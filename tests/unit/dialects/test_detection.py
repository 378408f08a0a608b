"""The dialect of a model directory, by what its chat template teaches."""

import json
from dataclasses import replace

import pytest

from espalier.dialects import (
    SYNTAXES,
    chosen_dialect,
    detected_dialect,
    dialect_source,
    foreign_format,
    unread_call,
)
from espalier.policy.embedded import chat_template
from espalier.records import Malformed, ToolCall, ToolCalls
from tests.factories.tiny import TOOLS

MESSAGES = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
FAMILIES = {
    "hermes": "For each call return a JSON object within <tool_call></tool_call> tags." + MESSAGES,
    "qwen3_coder": "<tool_call>\n<function=example>\n</function>\n</tool_call>" + MESSAGES,
    "mistral": "{{ '[AVAILABLE_TOOLS]' }}{{ '[TOOL_CALLS] [' }}" + MESSAGES,
    "llama3": '{{ \'{"name": "\' + name + \'", "parameters": \' }}' + MESSAGES,
    "pythonic": "Calls are [func_name1(params_name1=value), func_name2(params)]" + MESSAGES,
    "tags": MESSAGES,
}
"""The signs of the published templates, without their words."""


@pytest.mark.contract
@pytest.mark.parametrize("name", SYNTAXES)
def test_a_template_of_an_embedded_policy_names_its_own_dialect(name):
    assert detected_dialect(chat_template(SYNTAXES[name], TOOLS)) == name


@pytest.mark.parametrize(("name", "template"), FAMILIES.items())
def test_a_template_is_told_by_signs_in_two_files(tmp_path, name, template):
    assert detected_dialect(template) == name
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": template}))
    assert chosen_dialect("auto", tmp_path) == name
    (tmp_path / "chat_template.jinja").write_text(FAMILIES["mistral"])
    assert chosen_dialect("auto", tmp_path) == "mistral"


@pytest.mark.parametrize("config", [None, "{", "[]", "{}"])
def test_a_directory_without_a_readable_template_has_tags(tmp_path, config):
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(config)
    assert chosen_dialect("auto", tmp_path) == "tags"


def test_the_embedded_policy_has_tags_unless_the_profile_says_otherwise(tmp_path):
    (tmp_path / "chat_template.jinja").write_text(FAMILIES["hermes"])
    assert chosen_dialect("auto", None) == "tags"
    assert chosen_dialect("llama3", tmp_path) == "llama3"
    assert chosen_dialect("hermes", None) == "hermes"


@pytest.mark.parametrize("name", ["hermes", "llama3"])
def test_of_several_named_templates_any_may_teach_the_dialect(tmp_path, name):
    templates = [
        {"name": "default", "template": MESSAGES},
        {"name": "tool_use", "template": FAMILIES[name]},
    ]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert chosen_dialect("auto", tmp_path) == name


FOREIGN = {
    "GLM": [
        "[gMASK]<sop>{{ '<|observation|>' }}",
        "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n</tool_call>",
    ],
    "gpt-oss": [
        "<|start|>assistant<|channel|>commentary to=functions.x <|message|>{}<|call|>",
        "{{ '<|start|>system<|message|>' }}{{ '<|channel|>analysis' }}",
    ],
    "DeepSeek": [
        "<\uff5cAssistant\uff5c><\uff5ctool▁calls▁begin\uff5c><\uff5ctool▁call▁begin\uff5c>function",
        "<\uff5cDSML\uff5cfunction_calls>",
        "{{ '<\uff5cUser\uff5c>' + m.content + '<\uff5cAssistant\uff5c>' }}",
    ],
    "Gemma": [
        "<start_of_turn>model\n{{ m.content }}<end_of_turn>",
        "<start_function_call>call:f{}<end_function_call>",
        "<|turn>model\n<|tool_call>call:f{}<tool_call|><turn|>",
    ],
    "Cohere": [
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Action: ```json",
        "<|START_ACTION|>[]<|END_ACTION|>",
    ],
    "Kimi": ["<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"],
    "MiniMax": ['<minimax:tool_call>\n<invoke name="f">'],
    "Phi": ["<|tool|>[]<|/tool|><|assistant|>{{ m }}<|end|>"],
    "Granite": ["<|start_of_role|>assistant<|end_of_role|><|tool_call|>[]"],
    "Nemotron": ["<TOOLCALL>[]</TOOLCALL>"],
    "InternLM": ["<|action_start|><|plugin|>{}<|action_end|>"],
    "Apertus": ['<|tools_prefix|>[{"f": {}}]<|tools_suffix|>'],
    "": [
        "<|tool_call_start|>[f(a=1)]<|tool_call_end|>",
        "<function_calls>f(a=1)</function_calls>",
        '<tool_calls>[{"name": "f"}]</tool_calls>',
        "<seed:tool_call>\n<function=f>\n<parameter=a>1</parameter>\n</function>\n</seed:tool_call>",
        "{% for tool in tools %}{{ tool|tojson }}{% endfor %}CALL f",
        "{% for call in m.tool_calls %}CALL {{ call.function.name }}{% endfor %}",
    ],
}
"""Family -> what the published templates of its releases write, without their words."""


@pytest.mark.parametrize(
    ("family", "template"), [(one, text) for one, texts in FOREIGN.items() for text in texts]
)
def test_a_call_format_without_a_dialect_is_named(family, template):
    assert foreign_format(template + MESSAGES) == family


@pytest.mark.parametrize("template", FOREIGN[""])
def test_a_format_of_no_dialect_is_taken_for_none(template):
    assert detected_dialect(template + MESSAGES) == "tags"


OWN_TOOLS = "{% for tool in tools %}{{ tool }}{% endfor %}{% if m.tool_calls %}{% endif %}"


@pytest.mark.parametrize(
    "template",
    [
        *FAMILIES.values(),
        *(OWN_TOOLS + FAMILIES[name] for name in FAMILIES if name != "tags"),
        "{% if m.role == 'tool' %}RESULT{% endif %}" + MESSAGES,
        "<tool_call></tool_call><tool_calls>" + MESSAGES,
    ],
)
def test_a_template_that_a_dialect_fits_is_not_foreign(template):
    assert foreign_format(template) is None


@pytest.mark.contract
@pytest.mark.parametrize("name", SYNTAXES)
def test_a_template_of_an_embedded_policy_is_not_foreign(name):
    assert foreign_format(chat_template(SYNTAXES[name], TOOLS)) is None


@pytest.mark.parametrize(
    ("setting", "template", "said"),
    [
        ("hermes", FAMILIES["llama3"], "policy.dialect"),
        ("auto", FAMILIES["llama3"], "its chat template"),
        ("auto", chat_template(SYNTAXES["react"], TOOLS), "its chat template"),
        ("auto", FAMILIES["tags"], "the fallback: its chat template has no known call format"),
        ("auto", FOREIGN["Gemma"][0], "the fallback: its chat template has no known call format"),
    ],
)
def test_the_origin_of_a_dialect_is_said(setting, template, said):
    assert dialect_source(setting, template) == said


CALL = ToolCalls((ToolCall(name="search", arguments={"query": "lyon"}),), "country")


def unread(name, text):
    """What `unread_call` says of a text, stored as an episode stores it."""
    action = SYNTAXES[name].parse(text, TOOLS)
    if isinstance(action, ToolCalls):
        return "read"
    broken = isinstance(action, Malformed)
    return unread_call(action.message(), TOOLS, SYNTAXES[name], is_malformed=broken)


@pytest.mark.parametrize("writer", SYNTAXES)
@pytest.mark.parametrize("reader", SYNTAXES)
def test_a_call_in_another_dialect_is_told_by_its_name(writer, reader):
    bare = replace(CALL, thought=None)
    for action in (CALL, bare) if writer not in ("tags", "react") else (CALL,):
        found = unread(reader, SYNTAXES[writer].write(action, TOOLS))
        assert found == ("read" if reader == writer else writer)


@pytest.mark.parametrize("name", SYNTAXES)
@pytest.mark.parametrize(
    "text",
    [
        "france",
        "<think> I could search for lyon </think> france",
        "<think> country </think><answer> france </answer>",
        "Thought: country\nFinal Answer: france",
        '{"answer": "france"}',
        '{"name": "lyon", "arguments": {}}',
        "[france]",
        "[lyon(1)]",
    ],
)
def test_an_answer_holds_no_unread_call(name, text):
    action = SYNTAXES[name].parse(text, TOOLS)
    assert unread_call(action.message(), TOOLS, SYNTAXES[name], is_malformed=False) is None


@pytest.mark.parametrize("name", SYNTAXES)
def test_a_call_within_a_thought_is_told(name):
    block = SYNTAXES[name].write(CALL, TOOLS).split("</think>")[-1].strip()
    for text in (
        f"<think> country {block} </think>",
        f"<think>\n{block}\n</think>\n\nfrance",
        f"<think> {block}",
    ):
        found = unread(name, text)
        alone = name in ("llama3", "pythonic", "react")  # their calls stand alone in a message
        assert found in ("in_thought", "read", *(["broken", None] if alone else ())), text


def test_without_known_tools_any_call_counts():
    text = '{"name": "lyon", "parameters": {}}'
    said = Malformed("x", text).message()
    assert unread_call(said, (), SYNTAXES["hermes"], is_malformed=False) == "llama3"
    assert unread_call(said, TOOLS, SYNTAXES["hermes"], is_malformed=False) is None

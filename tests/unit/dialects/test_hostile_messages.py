"""Whatever a policy writes is parsed without raising, soon, and into what can be kept."""

import json
import random
import time

import pytest

from espalier.dialects import SYNTAXES
from espalier.records import Malformed, Message, ToolCall, ToolCalls
from tests.factories.messages import BOTH, note

NAMES = list(SYNTAXES)
TEXTS = 2_000
VALUES = (
    "NaN", "-Infinity", "1e999", "-1e999", "9" * 5_000, "1" + "0" * 400, "null", r'"\ud800"',
    "[" * 100 + "]" * 100, "[" * 300 + "]" * 300, "[" * 3_000 + "]" * 3_000, '{"a":' * 300 + "1",
    '{"a":' * 200 + "1" + "}" * 200, "-" * 500 + "1", "(" * 150 + ")" * 150, "'\\ud800'", "\x00",
    "1" + "0" * 400 + "+1j", "0x" + "f" * 5_000, "-0b" + "1" * 20_000, "1e200*1e200", "{None: 1}",
    "[*[1]]", "{**{}}", "b'x'", "...", r"{'\ud800': 1}", "f'{1}'",
)  # fmt: skip
PIECES = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "<function=note>",
    "</function>", "<parameter=text>", "</parameter>", "<note>", "</note>", "<answer>", "</answer>",
    "[TOOL_CALLS]", "[ARGS]", "[TOOL_RESULTS]", "<|python_tag|>", "<|eot_id|>", "[note(", ")]",
    '{"name": "note", "arguments": {', '{"name": "note", "parameters": {', "}}", "text=", "; ", "{",
    "}", "[", "]", '"', "'", "\\", "\n", " ", "a.b", "lambda: 0", "\ufeff", "\u2028", "😀",
)  # fmt: skip


def hostile_text(rng, syntax):
    kind = rng.randrange(5)
    if kind == 0:  # the bytes of anything, as a tokenizer decodes them
        return rng.randbytes(rng.randrange(200)).decode("utf-8", "replace")
    if kind == 1:
        return "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 30)))
    valid = syntax.write(note("some text", {"rows": [1, 2.5, None]}), BOTH)
    if kind == 2:  # a value that nothing can hold in the place of another
        return valid.replace(rng.choice(("2.5", "1", "None", "null")), rng.choice(VALUES), 1)
    start, end = sorted(rng.choices(range(len(valid) + 1), k=2))
    if kind == 3:
        return valid[start:end]
    return valid[:start] + rng.choice((*PIECES, *VALUES, chr(rng.randrange(55_000)))) + valid[end:]


@pytest.mark.contract
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("error")
def test_no_hostile_text_breaks_a_parser(name):
    rng, syntax = random.Random(f"hostile/{name}"), SYNTAXES[name]
    kinds = set()
    for _ in range(TEXTS):
        action = syntax.parse(hostile_text(rng, syntax), BOTH)
        kinds.add(type(action))
        stored = json.dumps(action.message().model_dump(), allow_nan=False, ensure_ascii=False)
        assert Message(**json.loads(stored.encode())) == action.message()
    assert kinds >= {ToolCalls, Malformed}


ENDLESS = (
    *("<tool_call>" * 9_000, "</tool_call>" * 4_000 + "<tool_call>" * 4_000, "<think>" * 14_000),
    "<tool_call><function=note>" + "<parameter=a>" * 7_500 + "</function></tool_call>",
    *("<tool_call>" + "<function=note>" * 6_000 + "</tool_call>", "<answer>" * 12_000),
    *("[TOOL_CALLS]" * 8_000 + "[ARGS]", "[TOOL_CALLS]" + "a" * 90_000, "{}; " * 25_000),
    *("<think>x</think>" + "<note>" * 16_000, " " * 99_999 + "x", "{" * 99_999, "[" * 99_999),
    *("[" + "a." * 9_000 + "f()]", "[" + "a." * 450 + "f()]", "[f" + "()" * 9_000 + "]"),
    *('<tool_call>["' * 7_000, '<tool_call>["</tool_call>' * 3_900 + '"]</tool_call>'),
    "<tool_call>[" + '"</tool_call><tool_call>[",' * 3_500 + "1]</tool_call>",
    *("[TOOL_CALLS]f[ARGS]" + '["' * 45_000, "[TOOL_CALLS]f[ARGS]{}" * 4_700),
    *("[f(x=" + "-" * 9_000 + "1)]", "[f(x=" + "1+" * 9_000 + "1)]", "[" + "f()," * 4_900 + "f()]"),
)


@pytest.mark.contract
@pytest.mark.parametrize("name", NAMES)
def test_no_text_takes_more_than_a_moment_to_parse(name):
    slowest = 0.0
    for text in ENDLESS:
        started = time.perf_counter()
        SYNTAXES[name].parse(text, BOTH)
        slowest = max(slowest, time.perf_counter() - started)
    # the longest takes some 0.2 s; what is quadratic took 8 to 19
    assert slowest < 3


def test_a_name_of_many_parts_is_read_without_recursion():
    (call,) = SYNTAXES["pythonic"].parse("[" + "a." * 450 + "f()]", BOTH).calls
    assert call == ToolCall(name="a." * 450 + "f")

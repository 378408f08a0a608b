import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from espalier.completions import ModelRefusal, PlainText, parsed_answer
from tests.fakes.endpoint_double import PARIS, Capital, completion


def parsed(content, **fields):
    return parsed_answer(json.dumps(completion(content, **fields)).encode(), Capital)


@pytest.mark.parametrize(
    "content",
    [
        PARIS,
        f"```json\n{PARIS}\n```",
        f"```\n{PARIS}\n```",
        f"```json  \n\n{PARIS}```",
        f"```json\n{PARIS}" + "\n" * 50_000 + "```",
        "\n" * 50_000 + f"<think>Paris.</think>{PARIS}",
        f"\n <think>Paris, I think.</think>\n{PARIS}\n",
    ],
)
def test_a_fence_and_leading_thoughts_are_taken_off(content):
    assert parsed(content) == Capital(city="Paris", inhabitants=2)


@pytest.mark.parametrize(
    ("reason", "contents"),
    [
        ("empty", ["", None, "```json\n```"]),
        ("broken_json", [
            "<think>for ever", " " * 20_000 + "<think>" + "<think>" * 20_000,
            "```json\n" + "\n" * 50_000 + "x", "```" + "\n " * 50_000 + "x```",
            f"```python\n{PARIS}\n```", f"``` json\n{PARIS}\n```", f"```json{PARIS}```",
            PARIS + PARIS, f"Here you are: {PARIS}", PARIS[:-1], "[" * 100_000,
            PARIS.replace("{", '{"city": "Lyon", '), PARIS.replace("2", "NaN"),
            PARIS.replace("2", "9" * 5000),
        ]),
        ("wrong_shape", [
            PARIS.replace("2", '"2"'), PARIS.replace("2", "true"), '{"city": "Paris"}', "[]",
            PARIS.replace("2", '2, "more": 1'), PARIS.replace('"Paris"', "null"),
            PARIS.replace("Paris", "\\ud800"),
        ]),
    ],
)  # fmt: skip
def test_what_is_no_such_object_is_refused_with_its_reason(reason, contents):
    assert [parsed(content).reason for content in contents] == [reason] * len(contents)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"finish_reason": "length"}, "truncated"),
        ({"finish_reason": "content_filter"}, "filtered"),
        ({"finish_reason": "tool_calls"}, "wrong_shape"),
        ({"finish_reason": None}, "wrong_shape"),
        ({"refusal": "I cannot do that."}, "refused"),
    ],
)
def test_an_unfinished_answer_is_refused_even_if_it_parses(fields, reason):
    assert parsed(PARIS, **fields).reason == reason


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b'{"choices": []}',
        b'{"choices": [{}]}',
        b"\xff\xfe",
        b'{"choices": [{"finish_reason": "stop", "message": {"content": {"city": "Paris"}}}]}',
    ],
)
def test_a_body_that_is_no_completion_is_refused(body):
    assert parsed_answer(body, Capital).reason == "broken_json"


WHOLE = json.dumps(completion(PARIS)).encode()


@settings(max_examples=2000)
@given(st.integers(0, len(WHOLE)), st.integers(0, 20), st.binary(max_size=8))
def test_damaged_replies_give_an_answer_or_a_refusal(place, lost, added):
    answer = parsed_answer(WHOLE[:place] + added + WHOLE[place + lost :], Capital)
    # a changed letter may spell another city, which nobody could tell from an answer
    assert isinstance(answer, ModelRefusal | Capital)
    if isinstance(answer, Capital):
        assert (type(answer.city), type(answer.inhabitants)) == (str, int)


@pytest.mark.parametrize(
    "text", ["   ", "<search> lyon </search>", "a\x00b", "right\u202eleft", "x" * 2001]
)
def test_a_text_unfit_for_a_message_is_refused(text):
    with pytest.raises(ValidationError):
        TypeAdapter(PlainText).validate_python(text)


def test_a_plain_text_is_one_line():
    assert TypeAdapter(PlainText).validate_python("  two\n words ") == "two words"

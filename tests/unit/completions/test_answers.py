import json
import random

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from espalier.completions import ModelRefusal, PlainText, parsed_answer
from tests.fakes.endpoint_double import PARIS, Capital, completion


def parsed(content, **fields):
    return parsed_answer(json.dumps(completion(content, **fields)).encode(), Capital)


def test_a_json_object_of_the_type_is_the_answer():
    assert parsed(PARIS) == Capital(city="Paris", inhabitants=2)


@pytest.mark.parametrize(
    "content",
    [
        f"```json\n{PARIS}\n```",
        f"```\n{PARIS}\n```",
        f"<think>Paris, I think.</think>\n{PARIS}",
        f"\n  {PARIS}\n",
    ],
)
def test_a_fence_and_leading_thoughts_are_taken_off(content):
    assert parsed(content) == Capital(city="Paris", inhabitants=2)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "empty"),
        (None, "empty"),
        ("```json\n```", "empty"),
        ("<think>for ever", "broken_json"),
        ("Paris", "broken_json"),
        (PARIS + PARIS, "broken_json"),
        (f"Here you are: {PARIS}", "broken_json"),
        (PARIS[:-1], "broken_json"),
        ('{"city": "Paris", "city": "Lyon", "inhabitants": 2}', "broken_json"),
        ('{"city": "Paris", "inhabitants": NaN}', "broken_json"),
        ("[" * 100_000, "broken_json"),
        ('{"city": "Paris", "inhabitants": ' + "9" * 5000 + "}", "broken_json"),
        ('{"city": "Paris", "inhabitants": "2"}', "wrong_shape"),
        ('{"city": "Paris", "inhabitants": 2.5}', "wrong_shape"),
        ('{"city": "Paris", "inhabitants": true}', "wrong_shape"),
        ('{"city": null, "inhabitants": 2}', "wrong_shape"),
        ('{"city": "Paris"}', "wrong_shape"),
        ('{"city": "Paris", "inhabitants": 2, "more": 1}', "wrong_shape"),
        ('{"city": "\\ud800", "inhabitants": 2}', "wrong_shape"),
        ("[]", "wrong_shape"),
        ("null", "wrong_shape"),
    ],
)
def test_what_is_no_such_object_is_refused_with_its_reason(content, reason):
    answer = parsed(content)
    assert isinstance(answer, ModelRefusal)
    assert answer.reason == reason


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
        b"{}",
        b'{"choices": []}',
        b'{"choices": [{}]}',
        b"\xff\xfe",
        b"<html>busy</html>",
        b'{"choices": [{"finish_reason": "stop", "message": {"content": {"city": "Paris"}}}]}',
    ],
)
def test_a_body_that_is_no_completion_is_refused(body):
    assert parsed_answer(body, Capital).reason == "broken_json"


def test_damaged_replies_give_the_original_answer_or_a_refusal():
    whole = json.dumps(completion(PARIS)).encode()
    wanted = Capital(city="Paris", inhabitants=2)
    rng = random.Random(0)
    refused = 0
    for _ in range(10_000):
        answer = parsed_answer(_damaged(whole, rng), Capital)
        refused += isinstance(answer, ModelRefusal)
        # a changed letter may spell another city, which nobody could tell from an answer
        assert isinstance(answer, ModelRefusal | Capital)
        if isinstance(answer, Capital) and answer != wanted:
            assert type(answer.city) is str
            assert type(answer.inhabitants) is int
    assert refused > 5000


def _damaged(body, rng):
    body = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(body))
        match rng.randrange(4):
            case 0:
                body[place] = rng.randrange(256)
            case 1:
                del body[place : place + rng.randint(1, 20)]
            case 2:
                body[place:place] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 8)))
            case 3:
                body = body[: max(place, 1)]
        if not body:
            return b""
    return bytes(body)


@pytest.mark.parametrize(
    "text", ["", "   ", "<search> lyon </search>", "a\x00b", "right\u202eleft", "x" * 2001]
)
def test_a_text_unfit_for_a_message_is_refused(text):
    with pytest.raises(ValidationError):
        TypeAdapter(PlainText).validate_python(text)


def test_a_plain_text_is_one_line():
    class Line(BaseModel):
        text: PlainText

    assert Line(text="  two\n words ").text == "two words"

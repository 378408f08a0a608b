"""Requests as they are read: what is taken, what is refused and why."""

import base64
import contextlib
import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.wire import Limits, RequestError, RunRequest, parse_run

CEILING = Limits(memory_bytes=2**28, wall_s=10.0)


def _parse(**said):
    return parse_run(json.dumps(said).encode(), CEILING)


def test_a_request_is_read_as_it_was_written():
    asked = RunRequest(
        argv=("echo", "ä b"), stdin=b"\x00\xff", env={"A": "b"}, limits=replace(CEILING, cpu_s=1.5)
    )
    assert parse_run(asked.to_json(), CEILING) == asked


def test_limits_that_are_not_named_are_the_sandboxes_own():
    assert _parse(argv=["true"]).limits == CEILING
    assert _parse(code="1", limits={"cpu_s": 2}).limits == replace(CEILING, cpu_s=2)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "either argv"),
        ({"argv": []}, "either argv"),
        ({"argv": ["a"], "code": "1"}, "either argv"),
        ({"argv": "ls"}, "list"),
        ({"argv": [1]}, r"argv\[0\]"),
        ({"argv": ["a"] * 5000}, "4096"),
        ({"argv": ["a\0"]}, "NUL"),
        ({"argv": ["\ud800"]}, "Unicode"),
        ({"argv": ["x" * 131072]}, "stdin"),
        ({"code": 1}, "code"),
        ({"code": "1", "session": 1}, "session"),
        ({"code": "1", "session": True, "stdin": "aGk="}, "stdin"),
        ({"argv": ["a"], "session": True}, "code"),
        ({"argv": ["a"], "stdin": "~"}, "base64"),
        ({"argv": ["a"], "stdin": "\x80"}, "base64"),
        ({"argv": ["a"], "env": []}, "object"),
        ({"argv": ["a"], "env": {"A=B": ""}}, "A=B"),
        ({"argv": ["a"], "env": {"A": 1}}, "string"),
        ({"argv": ["a"], "limits": []}, "object"),
        ({"argv": ["a"], "limits": {"memory": 1}}, "memory"),
        ({"argv": ["a"], "limits": {"memory_bytes": 1.5}}, "memory_bytes"),
        ({"argv": ["a"], "limits": {"memory_bytes": True}}, "memory_bytes"),
        ({"argv": ["a"], "limits": {"memory_bytes": 0}}, "memory_bytes"),
        ({"argv": ["a"], "limits": {"wall_s": 1e999}}, "wall_s"),
        ({"argv": ["a"], "limits": {"wall_s": 11}}, r"10\.0"),
        ({"argv": ["a"], "timeout": 1}, "timeout"),
    ],
)
def test_an_invalid_run_is_refused_with_the_reason(said, why):
    with pytest.raises(RequestError, match=why) as refusal:
        _parse(**said)
    assert refusal.value.status == 400


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"a":' + b"9" * 5000]
)
def test_a_body_without_json_object_is_refused(body):
    with pytest.raises(RequestError):
        parse_run(body, CEILING)


@given(st.binary(max_size=300))
def test_whatever_the_body_it_is_a_run_or_a_refusal(body):
    with contextlib.suppress(RequestError):
        assert isinstance(parse_run(body, CEILING), RunRequest)


@given(st.dictionaries(st.sampled_from(list(asdict(CEILING))), st.integers() | st.floats()))
def test_no_run_gets_more_than_the_sandbox_has(limits):
    try:
        had = _parse(argv=["a"], limits=limits).limits
    except RequestError:
        return
    assert all(value <= getattr(CEILING, name) for name, value in asdict(had).items())


def test_input_is_bytes():
    data = bytes(range(256))
    assert _parse(argv=["a"], stdin=base64.b64encode(data).decode()).stdin == data

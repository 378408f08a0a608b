"""A chat template is a program of somebody else: it ends in time, and its faults are told."""

import sys
import threading
import time

import pytest
from jinja2 import TemplateError

from espalier.dialects import rendering as module
from espalier.dialects.dialect import Dialect
from espalier.dialects.rendering import rendering
from espalier.records import Message, PolicyError
from tests.factories.byte_tokenizer import byte_tokenizer
from tests.factories.messages import BOTH
from tests.unit.dialects.test_framing import CHATML

ASKED = (Message(role="user", content="?"),)
LOOP = "{% for _ in range(99999) %}"
ENDLESS = {
    "loops": LOOP * 4 + "{% endfor %}" * 4,
    "loops that write": LOOP * 3 + "a" + "{% endfor %}" * 3,
    "a filter": LOOP * 3 + "{% set x = range(99)|map('string')|list %}" + "{% endfor %}" * 3,
    "a macro": "{% macro m() %}" + LOOP * 3 + "{% endfor %}" * 3 + "{% endmacro %}{{ m() }}",
    "a namespace": "{% set n = namespace(i=0) %}" + LOOP * 3 + "{% set n.i = n.i + 1 %}"
    + "{% endfor %}" * 3,
    "loops that are skipped": LOOP * 3 + "{% if false %}a{% endif %}" + "{% endfor %}" * 3,
    "two macros": "{% macro a(n) %}{% if n %}{{ a(n - 1) }}{{ a(n - 1) }}{% endif %}{% endmacro %}"
    "{{ a(60) }}",
    "powers": "{{ 9 ** 9 ** 9 }}",
    "a power in a statement": "{% set x = 9 ** 99999999 %}",
    "a sum of many": LOOP * 2 + "{{ range(99999)|sum }}" + "{% endfor %}" * 2,
}  # fmt: skip
BROKEN = {
    "an include": ("{% include 'other.jinja' %}", "stands alone"),
    "an import": ("{% import 'other.jinja' as o %}", "stands alone"),
    "a parent": ("{% extends 'other.jinja' %}", "stands alone"),
    "an include from a variable": ("{% include messages[0].content %}", "stands alone"),
    "a type": ("{{ 'a' + 1 }}", "TypeError"),
    "a division": ("{{ 1 / 0 }}", "ZeroDivisionError"),
    "a macro without end": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
    "a lookup": ("{{ messages[99].content.x }}", "no element"),
    "an index": ("{{ 'abc'.index('z') }}", "ValueError"),
    "no end": ("{% for m in messages %}", "unexpected|end of template|endfor"),
    "a private attribute": ("{{ ''.__class__.__mro__ }}", "unsafe|undefined"),
    "its own refusal": ("{{ raise_exception('no system turns') }}", "no system turns"),
}


def read(template):
    tokenizer = byte_tokenizer(CHATML + template, ("<|im_start|>", "<|im_end|>"))
    return Dialect(tokenizer, BOTH, name="hermes").prompt_ids(ASKED)


@pytest.mark.parametrize("kind", ENDLESS)
def test_an_endless_template_is_told_in_time(kind, monkeypatch):
    monkeypatch.setattr(module, "WITHIN_S", 0.3)
    began_s = time.monotonic()
    with pytest.raises(PolicyError, match=r"does not end within 0.3 s|computes powers"):
        read(ENDLESS[kind])
    assert time.monotonic() - began_s < 5
    assert sys.gettrace() is None


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_template_is_one_message(kind):
    template, told = BROKEN[kind]
    with pytest.raises(PolicyError, match=f"chat template.*({told})"):
        read(template)


@pytest.mark.parametrize("text", ["{{ '**bold**' }}", "**a**", "{# 2 ** 3 #}", "{{ 2 * 3 }}"])
def test_stars_that_are_text_are_no_power(text):
    assert read(text)


def test_a_rendering_is_bounded_in_any_thread(monkeypatch):
    monkeypatch.setattr(module, "WITHIN_S", 0.1)
    told = []

    def render():
        try:
            read(ENDLESS["loops"])
        except PolicyError as error:
            told.append(str(error))

    thread = threading.Thread(target=render)
    thread.start()
    thread.join(10)
    assert "does not end" in told[0]


def test_a_tracer_of_somebody_else_is_put_back():
    seen = []

    def tracer(frame, event, argument):
        seen.append(event)

    sys.settrace(tracer)
    try:
        with pytest.raises(TemplateError), rendering("a"):
            raise ValueError
        assert sys.gettrace() is tracer
        with rendering("a"):
            pass
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(None)

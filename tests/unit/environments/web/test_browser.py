"""Reading pages, and acting on their elements."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.environments import ToolError
from espalier_environments.web.browser import MAX_URL, Browser, Request
from espalier_environments.web.document import (
    MAX_DEPTH,
    MAX_ELEMENTS,
    SelectorError,
    first_match,
    parse_html,
)
from espalier_environments.web.observing import page_lines
from espalier_environments.web.website import Reply

PAGE = """<!doctype html><html><head><title>slow login</title></head><body>
<nav><a href="/">home</a></nav>
<main><p>status <b id="status">open</b></p><ul><li>one<li>two</ul>
<form action="/issues/3/edit" method="post"><input type="hidden" name="token" value="t">
<input name="city" value="salem"><select name="label"><option>bug</option>
<option selected>idea</option></select><textarea name="note">a
b</textarea><button>save</button></form>
<form action="/search?x=1"><input name="q"><input type="submit" value="find"></form>
<a>nowhere</a><script>alert(1)</script></main></body></html>"""


def browser(form="tree", html=PAGE, max_characters=4000):
    shown = Browser(form, max_characters)
    shown.show(Reply("/issues/3", 200, html))
    return shown


def test_the_tree_has_roles_names_and_ids():
    assert browser().read().splitlines() == [
        " page slow login",
        " 1 link home",
        " text status open",
        " text one",
        " text two",
        " 2 textbox city salem",
        " 3 combobox label idea of bug , idea",
        " 4 textbox note a b",
        " 5 button save",
        " 6 textbox q",
        " 7 button find",
        " text nowhere",
    ]


def test_the_other_forms_have_the_same_elements():
    html, dom, words = (browser(form).read() for form in ("html", "dom", "words"))
    assert '<select id="3" name="label"><option>bug</option><option selected>idea' in html
    assert '<input id="2" name="city" value="salem">' in html
    assert '[2]<input name="city" value="salem" />' in dom
    assert '[3]<select name="label" value="idea">bug | idea</select>' in dom
    assert " combobox label 3 idea of bug , idea" in words.splitlines()
    text = browser(max_characters=64).read()
    assert (len(text), text[-4:]) == (64, " ...")


def test_a_button_sends_the_fields_of_its_form():
    page = browser()
    assert page.type("2", "oxford") == " 2 textbox city oxford"
    assert page.select("[3]", "bug") == " 3 combobox label bug of bug , idea"
    fields = {"city": "oxford", "label": "bug", "note": "a b"}
    assert page.click("5") == Request("POST", "/issues/3/edit", fields)
    page.type("6", "a b&c")
    assert page.click("7") == Request("GET", "/search?q=a+b%26c", {})
    assert page.goto("http://site.local/shop?page=2").url == "/shop?page=2"


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda page: page.click("99"), "99"),
        (lambda page: page.click("2"), "textbox"),
        (lambda page: page.type("2", "x" * 301), "300"),
        (lambda page: page.select("3", "none"), "bug, idea"),
        (lambda page: page.goto("http://example.com/"), "site"),
        (lambda page: page.goto("//example.com"), "site"),
        (lambda page: page.goto("javascript:alert(1)"), "site"),
        (lambda page: page.goto("/" + "x" * MAX_URL), "500"),
    ],
)
def test_what_cannot_be_done_is_said(act, said):
    with pytest.raises(ToolError, match=said):
        act(browser())


def test_typed_text_cannot_pass_for_another_line():
    line = browser().type("2", "x\n 9 button pay\r\u2028y")
    assert line.splitlines() == [" 2 textbox city x 9 button pay y"]


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        ("#status", "open"), ("p b", "open"), ("main form [name=city]", ""),
        ('select[name="label"]', "bug idea"), ("main *", "status open"), (".none", None),
    ],
)  # fmt: skip
def test_selectors_find_the_first_element(selector, text):
    found = first_match(parse_html(PAGE), selector)
    assert (found and found.text) == text


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("a < b & c &amp; d", "a < b & c & d"),
        ("<p>x</p> 1 < 2 &lt; 3", "x 1 < 2 < 3"),
        ("<p>x</p><a href=", "x <a href="),
        ("<a " * 30_000, ("<a " * 30_000).strip()),  # took minutes: each was a tag without an end
    ],
    ids=["signs", "references", "open", "many"],
)
def test_a_tag_without_an_end_is_text(html, text):
    assert " ".join(parse_html(html).text.split()) == text


@pytest.mark.parametrize("selector", ["", "p > b", "p:first-child", "a" * 201, "[x=", "p,b"])
def test_other_selectors_are_refused(selector):
    with pytest.raises(SelectorError):
        first_match(parse_html(PAGE), selector)


def test_deep_and_long_documents_stay_bounded():
    def depth(element):
        below = [depth(child) for child in element.children if not isinstance(child, str)]
        return 1 + max(below, default=-1)

    deep = parse_html("<div>" * 5000 + "x")
    assert deep.text == "x"
    assert depth(deep) <= MAX_DEPTH + 1
    wide = parse_html("<a href=/>b</a>" * (MAX_ELEMENTS + 50))
    assert len(page_lines(wide)) == MAX_ELEMENTS


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["<", ">", "<a href='/x'>", "</a>", "<![", "<!--", "-->", "<select>", "<option>", "&#x",
             "<form>", "<input", "=", '"', "<button>", "\x00", "<textarea>", "<title>", "]]>", "é",
             "<script>", "</", "<?", "&nbsp;", "\udc80"]
        )
    ).map("".join)
)  # fmt: skip
def test_any_text_is_read_as_a_page(text):
    for form in ("tree", "html", "dom", "words"):
        shown = browser(form, text)
        assert len(shown.read()) <= 4000
        assert [one.number for one in shown.controls] == list(range(1, len(shown.controls) + 1))

"""HTML as a tree of elements, and the selectors that WebArena's checks use on it.

Every text can be parsed: what is not HTML is text. Elements deeper than `MAX_DEPTH` become
siblings, and elements after the first `MAX_ELEMENTS` are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser

MAX_DEPTH = 100
MAX_ELEMENTS = 20_000
_VOID = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr")
)  # fmt: skip
_CLOSES_ITSELF = frozenset(("p", "li", "option", "tr", "td", "th", "dt", "dd"))
"""Elements that end where the next element with the same name begins."""
_UNSEEN = frozenset(("script", "style", "template", "head"))


@dataclass(slots=True)
class Element:
    """An element with its children, elements and texts."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict[str, str])
    children: list[Element | str] = field(default_factory=list["Element | str"])

    def walk(self) -> Iterator[Element]:
        """Yield this element and those below it, in document order."""
        yield self
        for child in self.children:
            if isinstance(child, Element):
                yield from child.walk()

    @property
    def text(self) -> str:
        """Its visible text, with single spaces."""
        return " ".join(" ".join(self._texts()).split())

    def _texts(self) -> Iterator[str]:
        for child in self.children:
            if isinstance(child, str):
                yield child
            elif child.tag not in _UNSEEN:
                yield from child._texts()


def parse_html(html: str) -> Element:
    """Return the root of a document, whose children are the outermost elements and texts."""
    parser = _Parser()
    end = html.rfind(">") + 1
    parser.feed(html[:end])
    parser.close()
    if end < len(html):  # text; the parser would look for its end at each "<" anew
        parser.handle_data(unescape(html[end:]))
    return parser.root


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("#document")
        self._open = [self.root]
        self._left = MAX_ELEMENTS

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._left <= 0:
            return
        self._left -= 1
        if tag in _CLOSES_ITSELF and self._open[-1].tag == tag:
            self._open.pop()
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        if tag not in _VOID and len(self._open) < MAX_DEPTH:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        for place in range(len(self._open) - 1, 0, -1):
            if self._open[place].tag == tag:
                del self._open[place:]
                return

    def handle_data(self, data: str) -> None:
        if self._left > 0:
            self._open[-1].children.append(data)

    def parse_marked_section(self, i: int, report: int = 1) -> int:
        """Parse `<![...` as a comment, as browsers do; the base class raises for most of them."""
        del report
        return self.parse_bogus_comment(i)


_PART = re.compile(
    r"""(?P<tag>[a-zA-Z][\w-]*|\*)|\#(?P<id>[\w-]+)|\.(?P<class>[\w-]+)"""
    r"""|\[(?P<name>[\w-]+)(?:=(?P<quote>["']?)(?P<value>[^"'\]]*)(?P=quote))?\]"""
)
MAX_SELECTOR = 200


class SelectorError(ValueError):
    """A selector of an unsupported kind."""


def first_match(root: Element, selector: str) -> Element | None:
    """Return the first element that matches a selector of tags, #ids, .classes and [attributes].

    A space means "somewhere below"; there are no other combinators.

    Raises:
        SelectorError: the selector is of an unsupported kind.
    """
    if len(selector) > MAX_SELECTOR:
        raise SelectorError(f"a selector of more than {MAX_SELECTOR} characters")
    steps = [_compound(step) for step in selector.split()]
    if not steps:
        raise SelectorError("an empty selector")

    # for each step the elements that match it, inside those of the step before
    found = [root]
    for step in steps:
        below = {id(one): one for outer in found for one in outer.walk() if one is not outer}
        found = [one for one in below.values() if all(_fits(one, part) for part in step)]
    return found[0] if found else None


def _compound(step: str) -> list[re.Match[str]]:
    parts: list[re.Match[str]] = []
    at = 0
    while at < len(step):
        part = _PART.match(step, at)
        if part is None:
            raise SelectorError(f"{step!r} is no selector of tags, #ids, .classes and [attributes]")
        parts.append(part)
        at = part.end()
    return parts


def _fits(element: Element, part: re.Match[str]) -> bool:
    if part["tag"]:
        return part["tag"] in ("*", element.tag)
    if part["id"]:
        return element.attributes.get("id") == part["id"]
    if part["class"]:
        return part["class"] in element.attributes.get("class", "").split()
    given = element.attributes.get(part["name"])
    return given is not None and part["value"] in (None, given)

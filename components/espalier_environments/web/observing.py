"""The text of a page for the policy, in four forms, and the elements that it can act on.

Elements that can be acted on are numbered from 1, in the order of the page.

    tree     page slow login              html   <title>slow login</title>
             text status open                    <p>status open</p>
             1 link edit                         <a id="1">edit</a>
             2 textbox city salem                <input id="2" name="city" value="salem">
             3 combobox label bug of bug , idea  <select id="3" name="label"><option ...>

    dom      [1]<a>edit</a>

    words    link edit 1                   a small policy copies what follows the name it wants
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html import escape

from espalier_environments.web.config import Observation
from espalier_environments.web.document import Element

_ROLES = {"a": "link", "button": "button", "select": "combobox", "textarea": "textbox"}
_INLINE = frozenset(("b", "i", "em", "strong", "span", "small", "code", "label"))
_CONTROLS = frozenset(("button", "select", "textarea", "input"))
_UNSEEN = frozenset(("script", "style", "template", "head"))
_BUTTONS = ("submit", "button", "image", "reset")


@dataclass(frozen=True, slots=True)
class Control:
    """An element that can be acted on."""

    number: int
    role: str
    """link, button, textbox or combobox."""
    name: str
    element: Element
    form: Element | None
    """The form that contains it."""
    options: tuple[str, ...] = ()

    @property
    def written(self) -> str:
        """The initial value of a field."""
        if self.role == "combobox":
            chosen = [
                one.text
                for one in self.element.walk()
                if one.tag == "option" and "selected" in one.attributes
            ]
            return (*chosen, *self.options, "")[0]
        if self.element.tag == "textarea":
            return self.element.text
        return self.element.attributes.get("value", "")


Line = str | Control
"""A text, or an element that can be acted on."""


def page_lines(document: Element) -> list[Line]:
    """Return texts and controls in the order of the page."""
    lines: list[Line] = []
    texts: list[str] = []
    number = 0
    for piece in _pieces(document, None):
        if isinstance(piece, str):
            texts.append(piece)
            continue
        if said := " ".join(" ".join(texts).split()):
            lines.append(said)
        texts = []
        if piece is not None:
            element, form = piece
            number += 1
            lines.append(_control(number, element, form))
    if said := " ".join(" ".join(texts).split()):
        lines.append(said)
    return lines


def title_of(document: Element) -> str:
    """Return the title of a page."""
    return next((one.text for one in document.walk() if one.tag == "title"), "")


_Piece = str | tuple[Element, Element | None] | None
"""A text, a control with its form, or None where a block begins or ends."""


def _pieces(element: Element, form: Element | None) -> Iterator[_Piece]:
    for child in element.children:
        if isinstance(child, str):
            yield child
        elif child.tag in _UNSEEN or child.attributes.get("type", "").lower() == "hidden":
            continue
        elif child.tag in _CONTROLS or (child.tag == "a" and "href" in child.attributes):
            yield child, form
        elif child.tag in _INLINE:
            yield from _pieces(child, form)
        else:
            yield None
            yield from _pieces(child, child if child.tag == "form" else form)
            yield None


def _control(number: int, element: Element, form: Element | None) -> Control:
    kind = element.attributes.get("type", "text").lower()
    role = _ROLES.get(element.tag, "button" if kind in _BUTTONS else "textbox")
    said = element.attributes.get("aria-label") or element.attributes.get("name", "")
    if role in ("link", "button"):
        said = element.text or element.attributes.get("value", "") or said
    options = tuple(one.text for one in element.walk() if one.tag == "option")
    return Control(number, role, " ".join(said.split()), element, form, options)


Values = Mapping[int, str]
"""Number of a field -> what was typed or selected; other fields have their initial value."""


def control_line(control: Control, values: Values, form: Observation) -> str:
    """Return one element as the policy reads it."""
    value = one_line(values.get(control.number, control.written))
    return _WRITERS[form](control, value)


def observation(title: str, lines: list[Line], values: Values, form: Observation) -> str:
    """Return a page as the policy reads it."""
    shown = [
        control_line(line, values, form) if isinstance(line, Control) else _TEXTS[form](line)
        for line in lines
    ]
    return "\n".join((_TITLES[form](one_line(title)), *shown))


def one_line(text: str) -> str:
    """Return text that cannot be mistaken for a separate line."""
    return " ".join(text.split())


def _tree_line(control: Control, value: str) -> str:
    # a space before the number, so that it is the same token here and as an argument
    words = [f" {control.number} {control.role} {control.name}"]
    if control.role in ("textbox", "combobox"):
        words.append(value)
    if control.options:
        words += ("of", " , ".join(control.options))
    return " ".join(filter(None, words))


def _words_line(control: Control, value: str) -> str:
    words = [f" {control.role} {control.name} {control.number}", value]
    if control.role in ("link", "button"):
        del words[1]
    if control.options:
        words += ("of", " , ".join(control.options))
    return " ".join(filter(None, words))


def _html_line(control: Control, value: str) -> str:
    number, name, value = f'id="{control.number}"', escape(control.name), escape(value)
    match control.role:
        case "link":
            return f"<a {number}>{name}</a>"
        case "button":
            return f"<button {number}>{name}</button>"
        case "combobox":
            options = "".join(
                f"<option{' selected' if escape(one) == value else ''}>{escape(one)}</option>"
                for one in control.options
            )
            return f'<select {number} name="{name}">{options}</select>'
        case _:
            return f'<input {number} name="{name}" value="{value}">'


def _dom_line(control: Control, value: str) -> str:
    tag, inner = control.element.tag, escape(control.name)
    shown = f' name="{inner}" value="{escape(value)}"'
    if control.role == "combobox":
        return f"[{control.number}]<{tag}{shown}>{escape(' | '.join(control.options))}</{tag}>"
    if control.role == "textbox":
        return f"[{control.number}]<{tag}{shown} />"
    return f"[{control.number}]<{tag}>{inner}</{tag}>"


_WRITERS: dict[Observation, Callable[[Control, str], str]] = {
    "tree": _tree_line,
    "html": _html_line,
    "dom": _dom_line,
    "words": _words_line,
}
_TEXTS: dict[Observation, Callable[[str], str]] = {
    "tree": lambda text: f" text {text}",
    "html": lambda text: f"<p>{escape(text)}</p>",
    "dom": escape,
    "words": lambda text: f" text {text}",
}
_TITLES: dict[Observation, Callable[[str], str]] = {
    "tree": lambda title: f" page {title}",
    "html": lambda title: f"<title>{escape(title)}</title>",
    "dom": lambda title: f"[page] {escape(title)}",
    "words": lambda title: f" page {title}",
}

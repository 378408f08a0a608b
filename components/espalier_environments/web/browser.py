"""A browser without a screen: the requests that actions make, and the page that is shown.

It does no I/O: `click` and similar methods return the request that they make, and `show` takes the
reply. The same code therefore browses a site in this process and one in a sandbox.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn
from urllib.parse import urlencode, urlsplit

from espalier.environments.tools import ToolError
from espalier_environments.web.config import Observation
from espalier_environments.web.document import Element, parse_html
from espalier_environments.web.observing import (
    Control,
    Line,
    control_line,
    observation,
    page_lines,
    title_of,
)
from espalier_environments.web.website import HOST, MAX_TEXT, Reply

MAX_URL = 500
_MAX_HISTORY = 100
_CUT = " ..."


class Request(NamedTuple):
    """A browser's request to a site."""

    method: str
    url: str
    """Path and query of the address."""
    form: dict[str, str]


class Browser:
    """One visitor's browser, on one page at a time.

    Args:
        form: form of the observations.
        max_characters: most characters of an observation.
    """

    def __init__(self, form: Observation, max_characters: int) -> None:
        self.url = ""
        """Path and query of the page."""
        self.document = Element("#document")
        self._form: Observation = form
        self._max_characters = max_characters
        self._lines: list[Line] = []
        self._values: dict[int, str] = {}
        self._history: list[str] = []

    @property
    def controls(self) -> list[Control]:
        """Elements of the page that can be acted on."""
        return [line for line in self._lines if isinstance(line, Control)]

    def show(self, reply: Reply) -> str:
        """Show a page and return what the policy reads of it."""
        self.url = reply.url
        self.document = parse_html(reply.html)
        self._lines = page_lines(self.document)
        self._values = {}
        return self.read()

    def read(self) -> str:
        """Return what the policy reads of the page."""
        text = observation(title_of(self.document), self._lines, self._values, self._form)
        if len(text) <= self._max_characters:
            return text
        return text[: self._max_characters - len(_CUT)] + _CUT

    def click(self, number: str) -> Request:
        """Return the request of a link or a button.

        Raises:
            ToolError: the element does not exist, or a click on it does nothing.
        """
        control = self._control(number)
        if control.role == "link":
            return self._visit(control.element.attributes["href"])
        if control.role != "button":
            verb = "type into it" if control.role == "textbox" else "select one of its options"
            raise ToolError(f"{control.number} is a {control.role}; {verb}")
        if control.form is None:
            raise ToolError(f"{control.number} is a button without a form; it does nothing")
        fields = {
            one.element.attributes["name"]: self._values.get(one.number, one.written)
            for one in self.controls
            if one.form is control.form and one.element.attributes.get("name")
        }
        target = control.form.attributes.get("action", self.url)
        if control.form.attributes.get("method", "get").lower() == "post":
            request = self._visit(target)
            return Request("POST", request.url, fields)
        return self._visit(f"{target.partition('?')[0]}?{urlencode(fields, errors='replace')}")

    def type(self, number: str, text: str) -> str:
        """Replace the text of a field and return the field's new text line.

        Raises:
            ToolError: the field does not exist, or the text is too long.
        """
        control = self._control(number)
        if control.role != "textbox":
            raise ToolError(f"{control.number} is a {control.role}, which takes no text")
        if len(text) > MAX_TEXT:
            raise ToolError(f"more than {MAX_TEXT} characters")
        return self._filled(control, text)

    def select(self, number: str, option: str) -> str:
        """Select an option of a field and return the field's new text line.

        Raises:
            ToolError: the field or the option does not exist.
        """
        control = self._control(number)
        if control.role != "combobox":
            raise ToolError(f"{control.number} is a {control.role}, which has no options")
        chosen = next((one for one in control.options if one == option.strip()), None)
        if chosen is None:
            raise ToolError(f"no such option; there are {', '.join(control.options)}")
        return self._filled(control, chosen)

    def goto(self, path: str) -> Request:
        """Return the request of an address that was entered.

        Raises:
            ToolError: the address leads to another site, or is too long.
        """
        return self._visit(path.strip())

    def back(self) -> Request:
        """Return the request of the previous page.

        Raises:
            ToolError: there is no previous page.
        """
        if not self._history:
            raise ToolError("there is no page before this one")
        return Request("GET", self._history.pop(), {})

    def leave(self) -> None:
        """Remember the current page, for `back`."""
        self._history = [*self._history, self.url][-_MAX_HISTORY:]

    def _filled(self, control: Control, value: str) -> str:
        self._values[control.number] = value
        return control_line(control, self._values, self._form)

    def _visit(self, url: str) -> Request:
        if len(url) > MAX_URL:
            raise ToolError(f"an address of more than {MAX_URL} characters")
        if url == HOST or url.startswith((f"{HOST}/", f"{HOST}?")):
            url = url.removeprefix(HOST) or "/"
        if not url.startswith("/") or url.startswith("//"):
            _refuse_elsewhere(url)
        try:
            parts = urlsplit(url)
        except ValueError:
            _refuse_elsewhere(url)
        return Request("GET", parts.path + (f"?{parts.query}" if parts.query else ""), {})

    def _control(self, number: str) -> Control:
        written = number.strip().removeprefix("[").removesuffix("]")
        for control in self.controls:
            if str(control.number) == written:
                return control
        raise ToolError(f"nothing on this page has the id {written[:40]}")


def _refuse_elsewhere(url: str) -> NoReturn:
    raise ToolError(f"{url[:80]} is not on this site; its addresses begin with /")

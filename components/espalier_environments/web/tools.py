"""The tools of the browser: typed functions on one episode's page."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from pydantic import BeforeValidator, StrictStr, WithJsonSchema

from espalier.environments.tools import Tool, ToolOutput
from espalier_environments.web.browser import Browser, Request
from espalier_environments.web.hosting import ProcessSite, Site


def _written(number: object) -> object:
    """Return an id as text: 3 and "3" are the same element."""
    return str(number) if isinstance(number, int) and not isinstance(number, bool) else number


ElementId = Annotated[StrictStr, BeforeValidator(_written), WithJsonSchema({"type": "string"})]
Text = StrictStr


class WebTools:
    """The actions of a policy: those of the public methods that `_NAMES` lists.

    Args:
        browser: a browser that shows no page yet.
        site: the site that it browses.
        start: path of the page in the prompt; it is loaded with the first call.
    """

    def __init__(self, browser: Browser, site: Site, start: str) -> None:
        self._browser = browser
        self._site = site
        self._start = start

    async def click(self, id: ElementId) -> ToolOutput:
        """Follow the link or press the button with this id; shows the page behind it."""
        await self._begin()
        request = self._browser.click(id)
        self._browser.leave()
        return await self._shown(request)

    async def type(self, id: ElementId, text: Text) -> str:
        """Replace the text of the textbox with this id."""
        await self._begin()
        return self._browser.type(id, text)

    async def select(self, id: ElementId, option: Text) -> str:
        """Select an option of the combobox with this id."""
        await self._begin()
        return self._browser.select(id, option)

    async def back(self) -> ToolOutput:
        """Show the page before this one."""
        await self._begin()
        return await self._shown(self._browser.back())

    async def goto(self, path: Text) -> ToolOutput:
        """Show the page at this address of the site, such as /issues/3."""
        await self._begin()
        request = self._browser.goto(path)
        self._browser.leave()
        return await self._shown(request)

    async def _begin(self) -> None:
        if not self._browser.url:
            self._browser.show(await self._site.reply(Request("GET", self._start, {})))

    async def _shown(self, request: Request) -> ToolOutput:
        reply = await self._site.reply(request)
        return ToolOutput(self._browser.show(reply), succeeded=reply.status < _ERRORS)

    def bound(self) -> tuple[Tool, ...]:
        """Return the tools for this episode's page."""
        return tuple(tool.over(getattr(self, tool.spec.name)) for tool in self.schemas())

    @staticmethod
    @lru_cache(maxsize=1)
    def schemas() -> tuple[Tool, ...]:
        """Return the tools with their schemas, bound to no page."""
        over = WebTools(Browser("tree", _ANY), ProcessSite("{}"), "/")
        return tuple(Tool(getattr(over, name)) for name in _NAMES)


_NAMES = ("click", "type", "select", "back", "goto")
_ERRORS = 400
"""Lowest status of an error page."""
_ANY = 1000

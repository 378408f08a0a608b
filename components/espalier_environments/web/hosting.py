"""The host of an episode's site: this process, or a sandbox.

Both run `website.py`. The site is espalier's own code, and all that a policy sends it are form
fields; a sandbox isolates it additionally, if nothing of a policy may come near this process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

from espalier.environments.held_sandbox import HeldSandbox
from espalier.environments.server_process import MAX_PRINTED
from espalier.sandbox import Sandbox
from espalier.sandbox.choice import PoolThread
from espalier.sandbox.protocol import SandboxLost
from espalier_environments.web import website
from espalier_environments.web.browser import Request
from espalier_environments.web.website import Reply, Website


class Site(Protocol):
    """The site of one episode, as changed by its visitor."""

    @property
    def state(self) -> str:
        """The records as JSON, as written by `Website.state`."""
        ...

    async def reply(self, request: Request) -> Reply:
        """Return the page for a request.

        Raises:
            EnvironmentLostError: the site was lost.
        """
        ...

    def end(self) -> None:
        """End the episode; `state` remains available."""
        ...


class ProcessSite:
    """A site in this process."""

    def __init__(self, records: str) -> None:
        self._website = Website(json.loads(records))

    @property
    def state(self) -> str:
        """The records as JSON."""
        return self._website.state()

    async def reply(self, request: Request) -> Reply:
        """Return the page for a request."""
        return self._website.reply(*request)

    def end(self) -> None:
        """Do nothing: no resource is held."""


class SandboxSite:
    """A site in the Python session of a sandbox, which is borrowed for the episode.

    Programs in sandboxes have no internet sockets, and a session is stopped between two calls, so
    each request is a call of the session and no server listens. The site's state comes with each
    page, so that an episode is scored without the sandbox.
    """

    def __init__(self, records: str, sandboxes: PoolThread, timeout_s: float) -> None:
        """Store the records; the sandbox is borrowed for the first page."""
        self.state = Website(json.loads(records)).state()
        self._timeout_s = timeout_s
        self._held = HeldSandbox(sandboxes, self._open)

    async def reply(self, request: Request) -> Reply:
        """Return the page for a request, and keep the site's new state in `state`."""
        code = _ASKED.format(json.dumps(json.dumps(request)))

        async def answered(sandbox: Sandbox) -> bytes:
            printed = await self._run(sandbox, code)
            return await sandbox.get(_LONG_PAGE) if printed == _IN_A_FILE else printed

        written = await self._held.use(answered)
        (url, status, html), self.state = json.loads(written)
        return Reply(url, status, html)

    def end(self) -> None:
        """Give the sandbox back."""
        self._held.end()

    async def _open(self, sandbox: Sandbox) -> None:
        await sandbox.put("website.py", _SOURCE.read_bytes())
        await sandbox.put("records.json", self.state.encode())
        await self._run(sandbox, _OPENING)

    async def _run(self, sandbox: Sandbox, code: str) -> bytes:
        result = await sandbox.python(code, timeout_s=self._timeout_s)
        if not result.succeeded or result.truncated:
            # the program is ours and does not fail on any input, so the sandbox is to blame
            raise SandboxLost(f"{sandbox.name}: the site does not answer: {result.text[-300:]}")
        return result.stdout


_SOURCE = Path(website.__file__)
_LONG_PAGE = "page.json"
_IN_A_FILE = b"in a file\n"
_OPENING = f"""
import sys; sys.path.insert(0, "")
import json, website
with open("records.json") as file: site = website.Website(json.load(file))
def show(page):
    text = json.dumps([page, site.state()])
    if len(text) > {MAX_PRINTED}:
        with open({_LONG_PAGE!r}, "w") as file: file.write(text)
        text = {_IN_A_FILE.decode().strip()!r}
    print(text)
"""
"""Records grow with every form that is sent: what is too long to print goes to a file."""
_ASKED = "show(site.reply(*json.loads({})))"
"""The request is inserted as a string literal, so that none of its characters is code."""

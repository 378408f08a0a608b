"""Requests that a page in somebody's browser sends to a server which asks for no API key.

A page may open a WebSocket to any address, this machine's included, and send simple requests; the
browser then names the page's site in `Origin`. And a site whose name is looked up again as
127.0.0.1 (DNS rebinding) is the same site to the browser, which then names it in `Host`. So a
request whose Origin is another site than its Host is refused, and a server that listens on loopback
alone answers only to names that cannot be bought: addresses, names without a dot, and those below
.localhost and .internal. With API keys nothing is checked here: no page has a key.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from espalier.wire.requests import Refusal

_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_UNSOLD = (".localhost", ".internal")
"""Domains in which no name is sold: the second has host.docker.internal and its like."""
_POLICY_VIOLATION = 1008


class BrowserGuard:
    """ASGI middleware that refuses, with status 403, what another site's page sends."""

    def __init__(self, app: ASGIApp, on_loopback: Callable[[], bool]) -> None:
        """Guard an application.

        Args:
            app: the application of a server without API keys.
            on_loopback: whether the server can be reached from this machine alone, once it
                listens.
        """
        self._app = app
        self._on_loopback = on_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        fault = _fault(Headers(scope=scope), on_loopback=self._on_loopback())
        if fault is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            # before the socket is accepted: status 403
            await WebSocketClose(_POLICY_VIOLATION)(scope, receive, send)
        else:
            refusal = Refusal(403, fault, code="foreign_site")
            await JSONResponse(refusal.body(), refusal.status)(scope, receive, send)


def _fault(headers: Headers, *, on_loopback: bool) -> str | None:
    host = headers.get("host", "")
    if on_loopback and host and not _is_unsold(host):
        return (
            f"this server is for programs of its own machine, and was called by the name "
            f"{host[:100]!r}; call it localhost, or give it API keys (serving.api_keys_file)"
        )
    origins = headers.getlist("origin")
    if all(_is_of(origin, host) for origin in origins):
        return None
    return (
        f"a page of another site ({', '.join(origins)[:100]!r}) may not use this server; call it "
        "from a program, or give it API keys (serving.api_keys_file)"
    )


def _is_of(origin: str, host: str) -> bool:
    """Whether an Origin is the site that a Host names; a proxy may have ended the site's TLS."""
    site = _site(origin)
    return site is not None and site == _site(f"{urlsplit(origin).scheme}://{host}")


def _is_unsold(host: str) -> bool:
    """Whether a Host is an address, or a name that no site of the Internet can have."""
    site = _site(f"http://{host}")
    if site is None:
        return False
    name = site[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(_UNSOLD)
    return True


def _site(origin: str) -> tuple[str, int | None] | None:
    """Return host and port of an origin; None if it is none ("null", a path, a broken address)."""
    try:
        parts = urlsplit(origin)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    if not parts.hostname or parts.username is not None or parts.path or parts.query:
        return None
    return parts.hostname, port

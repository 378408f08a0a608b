"""Which of several servers is asked: for token requests of `rollout` and for chat requests.

Requests with one beginning go to one server, whose prefix cache holds it, unless that has more than
its share of the open ones: consistent hashing with bounded loads (Mirrokni et al. 2016,
arXiv:1608.01350). A server that is left out gets none; its place is taken by each beginning's next.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import math
import socket
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import urlsplit

from espalier.records import EngineError

_MOST_OF_MEAN = 1.25
"""A server with more open seats than this multiple of the mean gets no new ones."""
_MORE = 2
"""Seats added to that limit: without them even two sessions of one task would part."""


@dataclass(slots=True, eq=False)
class RoutedServer:
    """One server of several, across its connections."""

    url: str
    open_seats: int = 0
    answered: int = 0
    """Number of requests that it answered."""


ServerT = TypeVar("ServerT", bound=RoutedServer)


@dataclass(slots=True, eq=False)
class Seat(Generic[ServerT]):
    """A session's or request's place on a server, which it loses with the server."""

    beginning: bytes
    """Digest of what it has in common with others."""
    server: ServerT


class Routes(Generic[ServerT]):
    """Gives out seats on the servers that are in use."""

    def __init__(self, name: str, usable: Callable[[], list[ServerT]]) -> None:
        """Route to servers.

        Args:
            name: what messages call the servers, such as "a, b: no server".
            usable: returns the servers that may be asked now.
        """
        self._name = name
        self._usable = usable

    def seat(self, beginning: str) -> Seat[ServerT]:
        """Give a new session or request a server.

        Raises:
            EngineError: none is left.
        """
        digest = hashlib.blake2b(beginning.encode(), digest_size=16).digest()
        return Seat(digest, self._taken(digest, self._usable()))

    def leave(self, seat: Seat[ServerT]) -> None:
        """End a session or request."""
        seat.server.open_seats -= 1

    def move(self, seat: Seat[ServerT]) -> None:
        """Give a seat another server; the same one only if no other is left.

        Raises:
            EngineError: none is left.
        """
        self.leave(seat)
        usable = self._usable()
        others = [server for server in usable if server is not seat.server]
        seat.server = self._taken(seat.beginning, others or usable)

    def _taken(self, beginning: bytes, usable: list[ServerT]) -> ServerT:
        """The beginning's first server that has room for a further seat."""
        if not usable:
            raise EngineError(f"{self._name} is left")
        mean = (sum(server.open_seats for server in usable) + 1) / len(usable)
        room = math.ceil(_MOST_OF_MEAN * mean) + _MORE
        by_rank = sorted(usable, key=lambda server: _rank(beginning, server.url))
        server = next(server for server in by_rank if server.open_seats < room)
        server.open_seats += 1
        return server


def _rank(beginning: bytes, url: str) -> bytes:
    """Order of a server for a beginning (rendezvous hashing): where one leaves, others stay."""
    return hashlib.blake2b(beginning + url.encode(), digest_size=8).digest()


async def addresses_of(url: str) -> Sequence[str]:
    """Return the servers behind `url`: one for each IP address of its host name, maybe none now.

    The name of a headless Service has one address for each pod, and a pod keeps its address while
    others come and go. A name with https stays as it is: the certificate is for it.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    if parts.scheme == "https":
        return [url]
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return [url]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    hosts = {str(address[4][0]) for address in found if address[0] == socket.AF_INET}
    hosts = hosts or {f"[{address[4][0]}]" for address in found}
    return [f"http://{one}:{port}{parts.path}" for one in sorted(hosts)]


def is_proxied(url: str) -> bool:
    """Whether a proxy of the environment stands between, which alone decides who is reached."""
    parts = urlsplit(url)
    is_direct = urllib.request.proxy_bypass(parts.hostname or "")
    return parts.scheme in urllib.request.getproxies() and not is_direct

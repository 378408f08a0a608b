"""Code that runs in the sandbox: carries messages to and from the WebSocket of a server there.

The only other module it uses is `server_process`. The server listens on the sandbox's own loopback
interface, which is unreachable from outside: each message passes through the sandbox's session.
"""

from __future__ import annotations

import base64
import os
import socket
import struct
import time
import urllib.request
from typing import Any

from espalier.environments.server_process import ServerProcess

_MAX_MESSAGE_BYTES = 1 << 20
_POLL_S = 0.05
_TEXT, _CLOSE, _PING, _PONG = 1, 8, 9, 10


class BrokenError(Exception):
    """The server broke the connection, or does not speak WebSocket."""


class Server(ServerProcess):
    """A program that listens on a port, and one WebSocket to it."""

    def __init__(self, name: str, argv: list[str], variables: dict[str, str], port: int) -> None:
        """Start the program; `connect` opens the WebSocket."""
        super().__init__(name, argv, variables, has_pipes=False)
        self._port = port
        self._socket: socket.socket | None = None
        self._unread = b""

    def connect(self, within_s: float) -> dict[str, Any]:
        """Wait until the program listens, and open a session; return {}, or the fault."""
        end = time.monotonic() + within_s
        while self.process.poll() is None and time.monotonic() < end:
            try:
                self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=1)
                break
            except OSError:
                time.sleep(_POLL_S)
        if self._socket is None:
            return self._fault(f"does not listen on port {self._port}")
        try:
            self._handshake(end)
        except (OSError, BrokenError) as error:
            return self._fault(f"opens no session: {error}")
        return {}

    def ask(self, message: str, within_s: float) -> dict[str, Any]:
        """Send a message and wait for the next one; return {"answer": TEXT}, or the fault."""
        end = time.monotonic() + within_s
        try:
            self._send(_TEXT, message.encode(), end)
            return {"answer": self._receive(end).decode(errors="replace")}
        except TimeoutError:
            return self._fault(f"no answer in {within_s:g} s")
        except (OSError, BrokenError) as error:
            return self._fault(f"the connection broke ({error})")

    def get(self, path: str, within_s: float) -> dict[str, Any]:
        """Return {"answer": TEXT} for a GET request, or the fault."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._port}{path}", timeout=max(0.1, within_s)
            ) as answer:
                return {"answer": answer.read(_MAX_MESSAGE_BYTES).decode(errors="replace")}
        except (OSError, ValueError) as error:
            return self._fault(f"{path}: {error}")

    def _fault(self, why: str) -> dict[str, Any]:
        return {"fault": why, "status": self.process.poll(), "said": self.last_words()}

    def _handshake(self, end: float) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        lines = (
            "GET /ws HTTP/1.1",
            f"Host: 127.0.0.1:{self._port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
        )
        assert self._socket is not None, "it was just connected"
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += self._more(end)
            if len(head) > _MAX_MESSAGE_BYTES:
                raise BrokenError("its answer has no end")
        head, _, self._unread = head.partition(b"\r\n\r\n")
        status, _, _ = head.partition(b"\r\n")
        if b" 101 " not in status:
            raise BrokenError(f"it answers {status[:100]!r}")

    def _send(self, kind: int, content: bytes, end: float) -> None:
        mask = os.urandom(4)
        size = len(content)
        if size < 126:
            head = struct.pack("!BB", 0x80 | kind, 0x80 | size)
        elif size < 1 << 16:
            head = struct.pack("!BBH", 0x80 | kind, 0x80 | 126, size)
        else:
            head = struct.pack("!BBQ", 0x80 | kind, 0x80 | 127, size)
        repeated = mask * (size // 4 + 1)
        masked = bytes(a ^ b for a, b in zip(content, repeated, strict=False))
        assert self._socket is not None, "a session is open"
        self._socket.settimeout(_left(end))
        self._socket.sendall(head + mask + masked)

    def _receive(self, end: float) -> bytes:
        """Return the next complete message."""
        whole = b""
        while True:
            first, second = self._take(2, end)
            size = second & 0x7F
            if size == 126:
                (size,) = struct.unpack("!H", self._take(2, end))
            elif size == 127:
                (size,) = struct.unpack("!Q", self._take(8, end))
            if second & 0x80 or len(whole) + size > _MAX_MESSAGE_BYTES:
                raise BrokenError("it sends no message of a server, or one that is too long")
            content = self._take(size, end)
            kind = first & 0x0F
            if kind == _CLOSE:
                raise BrokenError("the server closed it")
            if kind == _PING:
                self._send(_PONG, content, end)
            elif kind != _PONG:
                whole += content
                if first & 0x80:
                    return whole

    def _take(self, size: int, end: float) -> bytes:
        while len(self._unread) < size:
            self._unread += self._more(end)
        taken, self._unread = self._unread[:size], self._unread[size:]
        return taken

    def _more(self, end: float) -> bytes:
        assert self._socket is not None, "a session is open"
        self._socket.settimeout(_left(end))
        piece = self._socket.recv(1 << 16)
        if not piece:
            raise BrokenError("the server closed it")
        return piece


def _left(end: float) -> float:
    left_s = end - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s

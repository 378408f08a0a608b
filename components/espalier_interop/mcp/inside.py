"""Code that runs in the sandbox: sends a line to a server, and waits for the line that answers.

The only other module it uses is `server_process`. A server's own requests are refused, except
pings; notifications, and lines that are not JSON objects, are ignored.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import time
from typing import Any

from espalier.environments.server_process import ServerProcess, read_object

MAX_LINE_BYTES = 256 * 1024
_CHUNK = 1 << 16
_METHOD_NOT_FOUND = -32601


def reply_to(message: dict[str, Any]) -> str | None:
    """Return the reply to a server's own request; None if it needs none."""
    if "method" not in message or message.get("id") is None:
        return None
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "ping":
        return json.dumps({**reply, "result": {}})
    error = {"code": _METHOD_NOT_FOUND, "message": "this client offers tools a policy alone"}
    return json.dumps({**reply, "error": error})


class Server(ServerProcess):
    """A program that speaks MCP over its standard input and output."""

    def __init__(self, name: str, argv: list[str], variables: dict[str, str]) -> None:
        """Start the program and make its pipes non-blocking."""
        super().__init__(name, argv, variables, has_pipes=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._unsent = b""
        self._unread = b""
        self._skipping = False

    def tell(self, message: str) -> None:
        """Queue a line that has no answer; it is sent with the next request."""
        self._unsent += message.encode() + b"\n"

    def ask(self, message: str, number: int, within_s: float) -> dict[str, Any]:
        """Send a request and wait for its response.

        Returns:
            {"answer": TEXT}, {"late": true}, {"long": true} for a response over the limit, or
            {"ended": STATUS, "said": TEXT}.
        """
        self.tell(message)
        end = time.monotonic() + within_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            sending = False
            while (left_s := end - time.monotonic()) > 0:
                if bool(self._unsent) != sending:
                    sending = not sending
                    if sending:
                        selector.register(self._in, selectors.EVENT_WRITE)
                    else:
                        selector.unregister(self._in)
                for key, _ in selector.select(left_s):
                    if key.fd == self._in:
                        if not self._send():
                            return self._ended(end)
                    elif (found := self._read(number)) is not None:
                        return self._ended(end) if "ended" in found else found
        return {"late": True}

    def _send(self) -> bool:
        try:
            self._unsent = self._unsent[os.write(self._in, self._unsent[:_CHUNK]) :]
        except BlockingIOError:
            pass
        except OSError:  # the server closed its input
            return False
        return True

    def _read(self, number: int) -> dict[str, Any] | None:
        try:
            chunk = os.read(self._out, _CHUNK)
        except BlockingIOError:
            return None
        if not chunk:
            return {"ended": True}
        self._unread += chunk
        while b"\n" in self._unread:
            line, _, self._unread = self._unread.partition(b"\n")
            skipped, self._skipping = self._skipping, False
            if skipped or len(line) > MAX_LINE_BYTES:
                return {"long": True}  # only one request waits at a time, so this was its response
            if (found := self._met(line, number)) is not None:
                return found
        if len(self._unread) > MAX_LINE_BYTES:
            self._unread, self._skipping = b"", True
        return None

    def _met(self, line: bytes, number: int) -> dict[str, Any] | None:
        message = read_object(line)
        if message is None:
            return None
        if "method" in message:
            if (reply := reply_to(message)) is not None:
                self.tell(reply)
            return None
        if message.get("id") != number:
            return None  # the late response to a request that timed out
        return {"answer": line.decode(errors="replace")}

    def _ended(self, end: float) -> dict[str, Any]:
        try:
            status: int | None = self.process.wait(max(0.1, min(1.0, end - time.monotonic())))
        except subprocess.TimeoutExpired:  # the server closed its pipes but still runs
            status = None
        return {"ended": status, "said": self.last_words()}

"""What runs in the sandbox: starts servers, sends them a line, waits for the line that answers.

Standard library alone, because a sandbox has nothing else. A server that asks something of its
client is told that it may not; notifications, and lines that are no JSON object, are left alone.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any, cast

MAX_LINE_BYTES = 256 * 1024
MAX_PRINTED = 32 * 1024
"""Of what a call of the session prints; a longer answer is left in a file."""
_CHUNK = 1 << 16
_TAIL = 800
_METHOD_NOT_FOUND = -32601


def reply_to(message: dict[str, Any]) -> str | None:
    """What a server's own request is answered; None for what needs no answer."""
    if "method" not in message or message.get("id") is None:
        return None
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "ping":
        return json.dumps({**reply, "result": {}})
    error = {"code": _METHOD_NOT_FOUND, "message": "this client offers tools a policy alone"}
    return json.dumps({**reply, "error": error})


def read_object(line: bytes | str) -> dict[str, Any] | None:
    """The JSON object of a line, or None where it holds none."""
    try:
        message: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", message) if isinstance(message, dict) else None


def told(found: dict[str, Any], file: str) -> str:
    """What a call of the session prints; a long answer goes into a new file of that name."""
    text = json.dumps(found)
    if len(text) <= MAX_PRINTED:
        return text
    for before in Path().glob("answer-*.json"):
        before.unlink()
    with open(file, "x", encoding="utf-8") as stream:
        stream.write(text)
    return json.dumps({"file": file})


class Server:
    """A program that speaks MCP over its standard input and output."""

    def __init__(self, name: str, argv: list[str], variables: dict[str, str]) -> None:
        """Unpack the server's files where there are some, and start it in their folder."""
        folder = Path(name)
        folder.mkdir(exist_ok=True)
        packed = Path(f"{name}.tar.gz")
        if packed.exists():
            with tarfile.open(packed) as archive:
                archive.extractall(folder, filter="data")
            packed.unlink()
        self._stderr = Path("/tmp", f"{name}.stderr")
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                argv, cwd=folder, env={**os.environ, **variables},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
            )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._unsent = b""
        self._unread = b""
        self._skipping = False

    def tell(self, message: str) -> None:
        """Queue a line that has no answer; it is sent with what is asked next."""
        self._unsent += message.encode() + b"\n"

    def ask(self, message: str, number: int, within_s: float) -> dict[str, Any]:
        """Send a request and wait for its response.

        Returns:
            {"answer": TEXT}, {"late": true}, {"long": true} for a response over the limit, or
            {"ended": STATUS, "stderr": TEXT}.
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
        except OSError:  # it closed its input
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
                return {"long": True}  # one request waits at a time: it is the answer to that
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
            return None  # the response to a request that was given up
        return {"answer": line.decode(errors="replace")}

    def _ended(self, end: float) -> dict[str, Any]:
        try:
            status: int | None = self._process.wait(max(0.1, min(1.0, end - time.monotonic())))
        except subprocess.TimeoutExpired:  # it closed its pipes and goes on
            status = None
        with self._stderr.open("rb") as file:
            file.seek(max(0, self._stderr.stat().st_size - _TAIL))
            said = file.read().decode(errors="replace")
        return {"ended": status, "stderr": said}

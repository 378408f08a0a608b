"""Requests whose body ends in one place for a proxy and in another for a server behind it."""

import contextlib
import re
import socket
from urllib.parse import urlsplit

_HIDDEN = "GET {path} HTTP/1.1\r\nhost: x\r\n\r\n"
_LENGTHS = {
    "both": "content-length: {bytes}\r\ntransfer-encoding: chunked\r\n",
    "both, the other way round": "transfer-encoding: chunked\r\ncontent-length: {bytes}\r\n",
    "one length twice": "content-length: 5\r\ncontent-length: 5\r\n",
    "two lengths": "content-length: 5\r\ncontent-length: {bytes}\r\n",
    "a list": "content-length: 5, 5\r\n",
    "a sign": "content-length: +5\r\n",
    "no digits": "content-length: 5x\r\n",
}
KINDS = tuple(_LENGTHS)


def smuggled(kind, path="/health", method="POST"):
    """A request to `path` with a second one, to the same, in what may be its body."""
    hidden = "0\r\n\r\n" + _HIDDEN.format(path=path)
    lengths = _LENGTHS[kind].format(bytes=len(hidden))
    json = "content-type: application/json\r\n"
    return f"{method} {path} HTTP/1.1\r\nhost: x\r\n{json}{lengths}\r\n{hidden}".encode()


def statuses(line, sent):
    """The status of each answer to some bytes, until the server closes the connection."""
    line.settimeout(10)
    line.sendall(sent)
    said = b""
    with contextlib.suppress(ConnectionError):
        while part := line.recv(65_536):
            said += part
    return [int(status) for status in re.findall(rb"^HTTP/1\.. (\d+) ", said, re.MULTILINE)]


def statuses_at(url, sent):
    """The same of a server at an address."""
    at = urlsplit(url)
    with socket.create_connection((at.hostname, at.port), 5) as line:
        return statuses(line, sent)

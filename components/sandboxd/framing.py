"""HTTP requests whose length can be read in one way only.

A proxy in front may take the end of a request's body from Content-Length where this server takes it
from Transfer-Encoding, or from the other one of two lengths. What follows that end is then a second
request, which the proxy never saw. h11 refuses lengths that differ and malformed ones; this module
refuses every request that has more than one length, or a length that is not plain digits.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

_MAX_HEAD_BYTES = 64 * 1024
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_FOLDED = rb"[^\n]*(?:\n[ \t][^\n]*)*"  # a line that begins with a blank continues the one before
_LENGTH = re.compile(rb"(?im)^content-length[ \t]*:(" + _FOLDED + rb")")
_ENCODING = re.compile(rb"(?im)^transfer-encoding[ \t]*:")
_DIGITS = re.compile(rb"[ \t]*[0-9]+[ \t\r]*")
_OLD = re.compile(rb"[^\n]* HTTP/1\.0\r?\n")


def is_ambiguous(received: bytes) -> bool:
    """Whether the head at the beginning of `received` gives its body's length in no or two ways.

    False before the head is complete.
    """
    end = _END_OF_HEAD.search(received)
    if end is None:
        return False
    head = received[: end.start() + 1]
    lengths = _LENGTH.findall(head)
    is_encoded = bool(_ENCODING.search(head))
    return (
        len(lengths) + is_encoded > 1
        or not all(map(_DIGITS.fullmatch, lengths))
        or (is_encoded and bool(_OLD.match(head)))  # HTTP/1.0 has no encodings
    )


class _OneLength(h11.Connection):
    """h11's connection; a request of ambiguous length is no request."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event.

        Raises:
            RemoteProtocolError: the next request's length is ambiguous, or h11 refuses it.
        """
        if self.their_state is h11.IDLE and is_ambiguous(self.trailing_data[0]):
            raise h11.RemoteProtocolError("more than one length of the body, or a malformed one")
        return super().next_event()


class StrictProtocol(H11Protocol):
    """uvicorn's protocol over h11, without requests of ambiguous length."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = _OneLength(h11.SERVER, config.h11_max_incomplete_event_size or _MAX_HEAD_BYTES)

"""Server-sent events."""

from __future__ import annotations

import json

from espalier_interop.recording.call_request import Json


def event(content: Json, *, named: str = "") -> bytes:
    """Return one event; OpenAI's chat events have no names, those of the other formats do."""
    head = f"event: {named}\n".encode() if named else b""
    return head + b"data: " + json.dumps(content, allow_nan=False).encode() + b"\n\n"

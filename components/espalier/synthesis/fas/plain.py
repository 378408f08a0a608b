"""Text of documents as text of answers."""

from __future__ import annotations

from pydantic import TypeAdapter, ValidationError

from espalier.completions import PlainText

_ADAPTER = TypeAdapter(PlainText)


def plain(text: str) -> str:
    """`text` as it may stand in an answer; empty where it holds tags or too much."""
    try:
        return _ADAPTER.validate_python(text)
    except ValidationError:
        return ""

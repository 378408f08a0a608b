"""Results of tools without the punctuation of JSON, for policies with a short context."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import cast


def in_words(result: str) -> str:
    """Return a JSON result as its names and values, in order; other text is unchanged.

    {"status": "pending", "items": [{"item_id": "81"}]}     status pending items item_id 81
    """
    try:
        value: object = json.loads(result)
    except ValueError:
        return result
    if not isinstance(value, dict | list):
        return result
    return " ".join(_words(cast("object", value)))


def _words(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, below in cast("dict[str, object]", value).items():
            if below not in ("", [], {}, None):
                yield name
                yield from _words(below)
    elif isinstance(value, list):
        for below in cast("list[object]", value):
            yield from _words(below)
    elif isinstance(value, bool):
        yield "yes" if value else "no"
    else:
        yield str(value)

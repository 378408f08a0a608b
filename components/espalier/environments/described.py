"""Tools that a server describes: checks on the description before a policy sees it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from espalier.records import DataError
from espalier.records.message import ToolSpec

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_MAX_DESCRIPTION = 1000


def described(where: str, name: str, description: str, schema: Mapping[str, Any]) -> ToolSpec:
    """Return a tool made from its description, which is untrusted text.

    Args:
        where: the origin of the description, for the error message.
        name: the tool's name on the server.
        description: text for the policy; put on one line and shortened.
        schema: JSON schema of the arguments.

    Raises:
        DataError: the name cannot be written in every dialect.
    """
    if not _NAME.fullmatch(name):
        raise DataError(f"{where}: a tool may not be called {name[:100]!r}")
    return ToolSpec(
        name=name,
        description=" ".join(description.split())[:_MAX_DESCRIPTION],
        parameters=object_schema(schema),
    )


def within_bounds(where: str, specs: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return the tools after checking that a policy can be offered that many.

    Raises:
        DataError: there are no tools, or too many.
    """
    if not specs or len(specs) > MAX_TOOLS:
        raise DataError(f"{where}: lists {len(specs)} tools; it may be 1 to {MAX_TOOLS}")
    return tuple(specs)


def object_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object schema reduced to the keys that describe its properties."""
    properties = schema.get("properties")
    kept: dict[str, Any] = {
        "type": "object",
        "properties": dict(properties) if isinstance(properties, dict) else {},  # pyright: ignore[reportUnknownArgumentType]
    }
    for key in ("required", "$defs", "definitions"):
        if schema.get(key):
            kept[key] = schema[key]
    return kept

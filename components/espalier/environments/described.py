"""Tools that a server describes: what of a description may become a tool of an episode."""

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
    """A tool by its description, which is a stranger's text.

    Args:
        where: who describes it, for the error.
        name: as the server knows it.
        description: read by the policy; one line of it, shortened.
        schema: JSON schema of its arguments.

    Raises:
        DataError: a policy could not write its name in every dialect.
    """
    if not _NAME.fullmatch(name):
        raise DataError(f"{where}: a tool may not be called {name[:100]!r}")
    return ToolSpec(
        name=name,
        description=" ".join(description.split())[:_MAX_DESCRIPTION],
        parameters=object_schema(schema),
    )


def within_bounds(where: str, specs: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """The tools, if they are as many as a policy can be offered.

    Raises:
        DataError: there are none, or too many.
    """
    if not specs or len(specs) > MAX_TOOLS:
        raise DataError(f"{where}: lists {len(specs)} tools; it may be 1 to {MAX_TOOLS}")
    return tuple(specs)


def object_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of an object, of which the keys are kept that say what its properties are."""
    properties = schema.get("properties")
    kept: dict[str, Any] = {
        "type": "object",
        "properties": dict(properties) if isinstance(properties, dict) else {},  # pyright: ignore[reportUnknownArgumentType]
    }
    for key in ("required", "$defs"):
        if schema.get(key):
            kept[key] = schema[key]
    return kept

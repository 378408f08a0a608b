"""The functions of a task: from the documents of benchmarks to the tools that a policy is offered.

A task keeps a document as it is in its file, because the verifier uses its types. The policy reads
a JSON Schema, under a name that every dialect and endpoint can write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

from espalier.records import JsonObject, Task, ToolCall
from espalier.records.message import ToolSpec
from espalier.rewards.bfcl import WrittenCall

FUNCTIONS = "functions"
"""Argument of a task that holds the documents of its functions."""

_JSON_TYPES = {
    "dict": "object", "float": "number", "tuple": "array", "any": "string", "object": "object",
    "array": "array", "list": "array", "string": "string", "integer": "integer", "int": "integer",
    "number": "number", "boolean": "boolean", "bool": "boolean", "str": "string", "text": "string",
}  # fmt: skip
"""Type in a document -> type in a JSON Schema; other types are left unspecified."""
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_NAME_LENGTH = 64
"""Longest name that OpenAI's chat API accepts."""


class Offered(NamedTuple):
    """Functions in the form in which a policy is offered them."""

    documents: tuple[Mapping[str, Any], ...]
    specs: tuple[ToolSpec, ...]
    names: Mapping[str, str]
    """Name in a call, offered or from the document -> name in the document."""

    def written(self, calls: Sequence[ToolCall]) -> list[WrittenCall]:
        """Return calls with the names of the documents; unknown names are kept."""
        return [WrittenCall(self.names.get(one.name, one.name), one.arguments) for one in calls]

    def calls(self, written: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[ToolCall, ...]:
        """Return calls with the offered names."""
        offered = {name: spec.name for name, spec in self.by_document}
        return tuple(
            ToolCall(name=offered.get(name, name), arguments=dict(arguments))
            for name, arguments in written
        )

    @property
    def by_document(self) -> list[tuple[str, ToolSpec]]:
        """Name in the document and tool of each function."""
        names = [str(document["name"]) for document in self.documents]
        return list(zip(names, self.specs, strict=True))


def offered_in(task: Task) -> Offered:
    """Return the functions of a task."""
    return _offered(json.dumps(task.arguments[FUNCTIONS]))


@lru_cache(maxsize=1024)
def _offered(documents: str) -> Offered:
    return offered(json.loads(documents))


def offered(documents: Sequence[Mapping[str, Any]]) -> Offered:
    """Return documents as tools; `parameters` of a document is a schema in BFCL's form."""
    specs: list[ToolSpec] = []
    names: dict[str, str] = {}
    for document in documents:
        name = _name_of(str(document["name"]), names)
        names[name] = str(document["name"])
        specs.append(
            ToolSpec(
                name=name,
                description=str(document.get("description", "")),
                parameters=json_schema(cast("Mapping[str, Any]", document["parameters"])),
            )
        )
    for document in documents:
        names.setdefault(str(document["name"]), str(document["name"]))
    return Offered(tuple(documents), tuple(specs), names)


def _name_of(name: str, taken: Mapping[str, str]) -> str:
    """Return a unique name of letters, digits, _ and -; upstream also replaces dots by _."""
    plain = _NO_NAME.sub("_", name)[:_NAME_LENGTH] or "_"
    number = 1
    found = plain
    while found in taken:
        number += 1
        found = f"{plain[: _NAME_LENGTH - 4]}_{number}"
    return found


def json_schema(described: Mapping[str, Any]) -> JsonObject:
    """Convert a schema with BFCL's types to JSON Schema."""
    schema: dict[str, Any] = {
        key: value for key, value in described.items() if key not in _REWRITTEN
    }
    kind = described.get("type")
    if isinstance(kind, str) and kind.lower() in _JSON_TYPES:
        schema["type"] = _JSON_TYPES[kind.lower()]
    if isinstance(properties := described.get("properties"), dict):
        schema["properties"] = {
            name: json_schema(one) for name, one in cast("dict[str, Any]", properties).items()
        }
    if isinstance(items := described.get("items"), dict):
        schema["items"] = json_schema(cast("dict[str, Any]", items))
    return schema


_REWRITTEN = frozenset({"type", "properties", "items", "optional"})

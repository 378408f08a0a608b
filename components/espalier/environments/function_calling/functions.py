"""The functions of a task: from the documents of benchmarks to the tools that a policy reads of.

A document is kept in the task as its file has it, because a verifier checks by its types; what a
policy reads is JSON Schema, under a name that every dialect and endpoint can write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

from espalier.records import JsonObject, Task, ToolCall
from espalier.records.message import ToolSpec
from espalier.rewards import WrittenCall

FUNCTIONS = "functions"
"""Argument of a task: the documents of what it offers."""

_JSON_TYPES = {
    "dict": "object", "float": "number", "tuple": "array", "any": "string", "object": "object",
    "array": "array", "list": "array", "string": "string", "integer": "integer", "int": "integer",
    "number": "number", "boolean": "boolean", "bool": "boolean", "str": "string", "text": "string",
}  # fmt: skip
"""Type in a document -> type in a JSON Schema; any other is left open."""
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_NAME_LENGTH = 64
"""The longest name that OpenAI's chat API takes."""


class Offered(NamedTuple):
    """Functions as a policy is offered them."""

    documents: tuple[Mapping[str, Any], ...]
    specs: tuple[ToolSpec, ...]
    names: Mapping[str, str]
    """Name in a call, as it is offered or in the document -> name in the document."""

    def written(self, calls: Sequence[ToolCall]) -> list[WrittenCall]:
        """Calls by the names of the documents; what is not offered keeps its name."""
        return [WrittenCall(self.names.get(one.name, one.name), one.arguments) for one in calls]

    def calls(self, written: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[ToolCall, ...]:
        """Calls by the names that are offered."""
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
    """The functions of a task."""
    return _offered(json.dumps(task.arguments[FUNCTIONS]))


@lru_cache(maxsize=1024)
def _offered(documents: str) -> Offered:
    return offered(json.loads(documents))


def offered(documents: Sequence[Mapping[str, Any]]) -> Offered:
    """Documents as tools: `name`, `description`, and `parameters` in BFCL's form of a schema."""
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
    """A name of letters, digits, _ and -; upstream writes _ for the dots of a name as well."""
    plain = _NO_NAME.sub("_", name)[:_NAME_LENGTH] or "_"
    number = 1
    found = plain
    while found in taken:
        number += 1
        found = f"{plain[: _NAME_LENGTH - 4]}_{number}"
    return found


def json_schema(described: Mapping[str, Any]) -> JsonObject:
    """A schema in BFCL's types as JSON Schema."""
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

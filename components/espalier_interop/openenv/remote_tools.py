"""Tools of a server as tools of an episode, and the text that the policy reads of their results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field

from espalier.environments.described import described, object_schema, within_bounds
from espalier.environments.interpreter import shortened
from espalier.environments.tools import ToolOutput
from espalier.records import DataError, Message
from espalier.records.message import ToolSpec
from espalier.wire.openenv import MessageFault, parsed_data

ACT = "act"
"""The only tool for a server whose actions have a schema of their own."""
_RESERVED = frozenset({"reset", "step", "state", "close"})
"""Names that tools cannot have in OpenEnv."""
_FRAMEWORK = frozenset({"done", "reward", "metadata"})
"""Fields of an observation that OpenEnv itself adds."""


class _ListedTool(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    description: str = ""
    input_schema: dict[str, Any] = Field(default={}, validation_alias="input_schema")


def listed_tools(where: str, listed: object) -> tuple[ToolSpec, ...]:
    """Return the tools in a server's list.

    Raises:
        DataError: the list is malformed, or a name cannot be written by a policy.
    """
    if not isinstance(listed, list):
        raise DataError(
            f'{where}: lists no tools. If it has none, set environment.actions="schema"'
        )
    specs: list[ToolSpec] = []
    for value in cast("list[object]", listed):
        try:
            if not isinstance(value, dict):
                raise MessageFault("a tool is a JSON object")
            tool = parsed_data(cast("dict[str, Any]", value), _ListedTool)
        except MessageFault as fault:
            raise DataError(f"{where}: lists a malformed tool ({fault})") from fault
        if tool.name in _RESERVED:
            raise DataError(f"{where}: a tool may not be called {tool.name!r}")
        specs.append(described(where, tool.name, tool.description, tool.input_schema))
    return within_bounds(where, specs)


def schema_tool(where: str, schema: object) -> tuple[ToolSpec, ...]:
    """Return the tool `act`, whose arguments are the fields of a server's action schema.

    Raises:
        DataError: the schema does not describe an object.
    """
    action = cast("Mapping[str, Any]", schema).get("action") if isinstance(schema, dict) else None
    if not isinstance(action, dict) or not isinstance(action.get("properties"), dict):  # pyright: ignore[reportUnknownMemberType]
        raise DataError(f"{where}: its action schema is not an object with properties")
    parameters = object_schema(cast("dict[str, Any]", action))
    cast("dict[str, Any]", parameters["properties"]).pop("metadata", None)
    return (ToolSpec(name=ACT, description="Act in the environment.", parameters=parameters),)


def text_argument(specs: Sequence[ToolSpec], name: str) -> str | None:
    """Return the only text argument of the tool with that name; None if there is no such tool."""
    found = next((spec for spec in specs if spec.name == name), None)
    return found.text_argument if found is not None else None


def read_result(observation: Mapping[str, Any], path: str, max_characters: int) -> ToolOutput:
    """Return what the policy reads after a step."""
    error = observation.get("error")
    if isinstance(error, dict):
        said = cast("dict[str, Any]", error).get("message", error)
        return ToolOutput(shortened(str(said), max_characters), succeeded=False)
    text = as_text(field_of(observation, path or "result", whole=not path))
    return ToolOutput(shortened(text, max_characters))


def read_prompt(observation: Mapping[str, Any], path: str, where: str) -> tuple[Message, ...]:
    """Return the messages that an episode begins with.

    Raises:
        DataError: the field is missing or empty.
    """
    value = field_of(observation, path or "prompt", whole=not path)
    if isinstance(value, list) and value:
        items = cast("list[object]", value)
        try:
            return tuple(Message.model_validate(item) for item in items)
        except ValueError as error:
            raise DataError(
                f"{where}: {path or 'prompt'} holds no chat messages ({error})"
            ) from error
    text = as_text(cast("object", value))
    if not text.strip():
        raise DataError(
            f"{where}: the observation of its reset has nothing to ask under "
            f"{path or 'prompt'!r}; its fields are {', '.join(observation)}. Name one by "
            "environment.prompt"
        )
    return (Message(role="user", content=text),)


def field_of(observation: Mapping[str, Any], path: str, *, whole: bool) -> object:
    """Return the value at a dotted path; if missing, the whole observation or ""."""
    value: object = observation
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            rest = {key: one for key, one in observation.items() if key not in _FRAMEWORK}
            return rest if whole else ""
        value = cast("dict[str, object]", value)[name]
    return value


def as_text(value: object) -> str:
    """Return text as it is, and anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

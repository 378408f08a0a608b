"""The base of the simulated services: initial state, calls, results, and comparison of states.

The services follow the documents and the behaviour of BFCL's classes (ShishirPatil/gorilla,
6ea5797, `multi_turn_eval/func_source_code`): a call has the same effect on the state and fails in
the same cases; only the error texts are ours. Attributes without an underscore are the state that
is compared. The public methods of a service are its tools, and their docstrings the tools'
descriptions.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Mapping
from functools import lru_cache
from types import UnionType
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

from espalier.environments.tools import ToolError
from espalier.records import DataError, JsonObject

Reply = dict[str, Any]
"""Result of a tool; the key `error` says what was wrong."""

Fields = Mapping[str, tuple[type, ...]]
"""Key of a configuration -> the types that its value may have."""

FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions that arguments of a wrong type raise in a service, which then refuses the call."""


class Api:
    """Base class of the services; an instance belongs to one episode."""

    _FIELDS: ClassVar[Fields] = {}
    """The checked keys of a configuration."""

    def __init__(self, config: JsonObject) -> None:
        """Set the initial state from a configuration.

        Raises:
            DataError: a value in the configuration has the wrong type.
        """
        for name, kinds in self._FIELDS.items():
            if name in config and not isinstance(config[name], kinds):
                wanted = " or ".join(kind.__name__ for kind in kinds)
                raise DataError(f"{type(self).__name__}.{name}: needs {wanted}")
        self._begin(copy.deepcopy(config))

    def _begin(self, config: dict[str, Any]) -> None:
        """Set the attributes; the configuration is the service's own copy."""
        del config

    def snapshot(self) -> dict[str, Any]:
        """Return a copy of the state that is compared."""
        return copy.deepcopy(
            {name: value for name, value in vars(self).items() if not name.startswith("_")}
        )


@lru_cache(maxsize=64)
def tool_names(kind: type[Api]) -> tuple[str, ...]:
    """Return the names of a service's tools."""
    methods = inspect.getmembers(kind, inspect.isfunction)
    return tuple(name for name, _ in methods if name[0] != "_" and not hasattr(Api, name))


@lru_cache(maxsize=512)
def parameter_names(kind: type[Api], tool: str) -> tuple[str, ...]:
    """Return the names of a tool's parameters, in order."""
    return tuple(inspect.signature(getattr(kind, tool)).parameters)[1:]


@lru_cache(maxsize=512)
def document_of(kind: type[Api], tool: str) -> JsonObject:
    """Return a tool's description for the policy, in the form of BFCL's documents."""
    method = getattr(kind, tool)
    hints = get_type_hints(method)
    signature = list(inspect.signature(method).parameters.values())[1:]
    return {
        "name": tool,
        "description": inspect.getdoc(method) or "",
        "parameters": {
            "type": "dict",
            "properties": {one.name: _described(hints[one.name]) for one in signature},
            "required": [one.name for one in signature if one.default is one.empty],
        },
    }


def _described(hint: Any) -> JsonObject:  # noqa: ANN401 (a type, or an alias of one)
    """Return the type of a parameter in BFCL's terms; for a union with None the other type."""
    kinds = [one for one in get_args(hint) if one is not type(None)]
    if get_origin(hint) in (Union, UnionType):
        return _described(kinds[0])
    if get_origin(hint) is list:
        return {"type": "array", "items": _described(kinds[0])}
    return {"type": _BFCL_TYPES[get_origin(hint) or hint]}


_BFCL_TYPES: dict[Any, str] = {
    str: "string", int: "integer", float: "float", bool: "boolean", dict: "dict",
}  # fmt: skip


def play(api: Api, tool: str, arguments: Mapping[str, Any]) -> str:
    """Call a tool and return the text of its result.

    Raises:
        ToolError: it refuses the arguments; changes made before are kept, as upstream.
    """
    try:
        # copied, so that the state never shares objects with the recorded call
        answered = getattr(api, tool)(**copy.deepcopy(dict(arguments)))
        return _text(answered)
    except FAULTS as error:
        brief = f"{type(error).__name__}: {error}"[:200]
        raise ToolError(f"{tool} cannot be called so: {brief}") from error


def _text(answered: object) -> str:
    """Return a result as upstream writes it: objects as JSON, anything else with `str`."""
    if isinstance(answered, str):
        return answered
    if isinstance(answered, dict):
        try:
            return json.dumps(answered)
        except TypeError:  # a complex number: the root of a negative one
            return str(answered)  # pyright: ignore[reportUnknownArgumentType] (a dict of anything)
    return str(answered)

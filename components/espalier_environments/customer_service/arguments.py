"""Types of arguments of the tools of both domains.

tau-bench's tools check few of their arguments and write the others into the database unchecked.
Ours do the same: a wrong value that is stored costs the episode its reward there, so it must not
become an error here that the policy could repair. Only text or an object in place of a list is
refused, where tau-bench takes "" and {} for an empty list. The schemas are those of tau-bench.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    JsonValue,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    WithJsonSchema,
)

from espalier.environments.tools import ToolError

Text = StrictStr
"""Text that is looked up."""
StoredText = Annotated[JsonValue, WithJsonSchema({"type": "string"})]
"""Text that is stored or compared unchecked."""
StoredInteger = Annotated[JsonValue, WithJsonSchema({"type": "integer"})]
"""A number that is stored unchecked."""
StoredNumber = Annotated[JsonValue, WithJsonSchema({"type": "number"})]
_MAX_NUMBER = 1e15
"""Largest number in calculations: a product of longer integers might be too long to print."""


def _countable(number: float) -> float:
    if abs(number) > _MAX_NUMBER:
        raise ValueError(f"larger than {_MAX_NUMBER:g}")
    return number


Integer = Annotated[
    StrictInt | StrictFloat | StrictBool,
    AfterValidator(_countable),
    WithJsonSchema({"type": "integer"}),
]
"""A number used in calculations: 2 and 2.0 are not converted, as digests distinguish them."""


def chosen_from(*values: str) -> WithJsonSchema:
    """Return the schema of text that should be one of `values`; a tool may still get another."""
    return WithJsonSchema({"type": "string", "enum": list(values)})


def list_of_objects(**fields: str) -> WithJsonSchema:
    """Return the schema of a list of objects, given field -> description, of type text."""
    return WithJsonSchema(
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    name: {"type": _NUMBERS.get(name, "string"), "description": text}
                    for name, text in fields.items()
                },
                "required": list(fields),
            },
        }
    )


_NUMBERS = {"amount": "number"}


def text_in(record: dict[str, Any], name: str) -> str:
    """Return a text field of an object that the policy wrote.

    Raises:
        ToolError: the field is missing, or not text.
    """
    value = record.get(name)
    if not isinstance(value, str):
        raise ToolError(f"{name}: needs text in each object of the list")
    return value


def number_in(record: dict[str, Any], name: str) -> int | float:
    """Return a number in an object that the policy wrote, or had written into the database.

    Raises:
        ToolError: the field is missing, or not a number.
    """
    value = record.get(name)
    if not isinstance(value, int | float) or abs(value) > _MAX_NUMBER:
        raise ToolError(f"{name}: needs a number of at most {_MAX_NUMBER:g}")
    return value

"""Types of arguments that the tools of both domains take.

tau-bench's tools check few of their arguments and write the others into the database as they come.
So do ours: a wrong value that is stored costs the episode its reward there, and must not become an
error here that the policy could repair. Text or an object in the place of a list is refused, where
tau-bench takes "" and {} for an empty list. Schemas say what tau-bench's say.
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
"""Text that is stored, or compared, as it comes."""
StoredInteger = Annotated[JsonValue, WithJsonSchema({"type": "integer"})]
"""A number that is stored as it comes."""
StoredNumber = Annotated[JsonValue, WithJsonSchema({"type": "number"})]
_MAX_NUMBER = 1e15
"""Of what is calculated with: a product of longer integers may be one that cannot be written."""


def _countable(number: float) -> float:
    if abs(number) > _MAX_NUMBER:
        raise ValueError(f"larger than {_MAX_NUMBER:g}")
    return number


Integer = Annotated[
    StrictInt | StrictFloat | StrictBool,
    AfterValidator(_countable),
    WithJsonSchema({"type": "integer"}),
]
"""A number that is calculated with: 2 and 2.0 stay what they are, as digests tell them apart."""


def chosen_from(*values: str) -> WithJsonSchema:
    """The schema of text that should be one of `values`; the tool stores or refuses another."""
    return WithJsonSchema({"type": "string", "enum": list(values)})


def list_of_objects(**fields: str) -> WithJsonSchema:
    """The schema of a list of objects, given field -> description, of type text."""
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
    """A text field of an object that the policy wrote.

    Raises:
        ToolError: it is missing, or no text.
    """
    value = record.get(name)
    if not isinstance(value, str):
        raise ToolError(f"{name}: needs text in each object of the list")
    return value


def number_in(record: dict[str, Any], name: str) -> int | float:
    """A number of an object that the policy wrote, or had written into the database.

    Raises:
        ToolError: it is missing, or no number.
    """
    value = record.get(name)
    if not isinstance(value, int | float) or abs(value) > _MAX_NUMBER:
        raise ToolError(f"{name}: needs a number of at most {_MAX_NUMBER:g}")
    return value

"""Wire form of values between the process of a program and the process that compares them.

    None True "text"        as in JSON
    7  1.5  1j  b"a"        ["i", "7"] ["f", "0x1.8p+0"] ["c", "0x0.0p+0", "0x1.0p+0"] ["b", "61"]
    [..] (..) {..} {k: v}   ["l", ...] ["t", ...] ["s", ...] ["d", [k, v], ...]
    int                     ["y", "int"]
    anything else           ["o", 3, "Node"], an object that stays where it is, by its number

Numbers are hexadecimal: exact, and fast however long. Decoding yields genuine built-in values,
whatever class they had in the program: no object of a program is ever compared.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, cast

PLAIN_TYPES = ("int", "float", "str", "bool", "list", "tuple", "dict", "set", "bytes", "complex")
"""Types that are sent by their names."""


class Unreadable(Exception):
    """The wire form is invalid."""


def encode(value: Any, hold: Callable[[Any], int]) -> Any:  # noqa: ANN401 (any value, and its JSON)
    """Return the wire form of a value.

    Args:
        value: any object.
        hold: object -> its number, for objects that are not plain values.
    """
    match value:
        case None | True | False:
            return value
        case str():
            return str.__str__(value)
        case int():
            return ["i", int.__format__(value, "x")]
        case float():
            return ["f", float.hex(value)]
        case complex():
            return ["c", float.hex(value.real), float.hex(value.imag)]
        case bytes() | bytearray():
            return ["b", bytes(value).hex()]
        case list() | tuple() | set() | frozenset():
            kind = "l" if isinstance(value, list) else "t" if isinstance(value, tuple) else "s"
            return [kind, *[encode(one, hold) for one in cast("list[Any]", value)]]
        case dict():
            pairs = cast("dict[Any, Any]", value).items()
            return ["d", *[[encode(key, hold), encode(one, hold)] for key, one in pairs]]
        case type() if value.__module__ == "builtins":
            return ["y", value.__name__]
        case _:
            return ["o", hold(value), type(value).__name__]


def decode(wire: Any, held: Callable[[Any, Any], Any]) -> Any:  # noqa: ANN401 (whatever was sent)
    """Return the value of a wire form.

    Args:
        wire: any result of `json.loads`.
        held: number and type name -> the object, for objects that are not plain values.

    Raises:
        Unreadable: the wire form is invalid.
        RecursionError: it is nested too deeply.
    """
    if wire is None or isinstance(wire, bool | str):
        return wire
    if not isinstance(wire, list) or not wire:
        raise Unreadable("neither a word nor a tagged list")
    kind, *parts = cast("list[Any]", wire)
    try:
        return _decoded(kind, parts, held)
    except (TypeError, ValueError, OverflowError) as error:
        raise Unreadable(str(error)) from error


_COLLECTIONS: dict[str, Callable[[list[Any]], Any]] = {"l": list, "t": tuple, "s": set}


def _decoded(kind: Any, parts: list[Any], held: Callable[[Any, Any], Any]) -> Any:  # noqa: ANN401
    match kind, parts:
        case "l" | "t" | "s", _:
            return _COLLECTIONS[kind]([decode(part, held) for part in parts])
        case "d", _:
            return {decode(key, held): decode(value, held) for key, value in parts}
        case "i", [str(text)]:
            return int(text, 16)
        case "f", [str(text)]:
            return float.fromhex(text)
        case "c", [str(real), str(imaginary)]:
            return complex(float.fromhex(real), float.fromhex(imaginary))
        case "b", [str(text)]:
            return bytes.fromhex(text)
        case "y", [str(text)] if text in PLAIN_TYPES:
            return getattr(builtins, text)
        case "o", [number, name]:
            return held(number, name)
        case _:
            raise Unreadable("no such kind")

"""Wire form of values between the process of a program and the process that compares them.

    None True "text"        as in JSON
    7  1.5  1j  b"a"        ["i", "7"] ["f", "0x1.8p+0"] ["c", "0x0.0p+0", "0x1.0p+0"] ["b", "61"]
    [..] (..) {..} {k: v}   ["l", ...] ["t", ...] ["s", ...] ["d", [k, v], ...]
    Decimal("1.10")         ["v", "Decimal", "1.10"]; so Fraction, range, date and the like
    int, ValueError         ["y", "int"] ["y", "ValueError"]
    anything else           ["o", ...], a reference that whoever encodes and decodes gives meaning

Numbers are hexadecimal: exact, and fast however long. Decoding yields genuine built-in values,
whatever class they had in the program: no object of a program is ever compared.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, cast

PLAIN_TYPES = (
    "int", "float", "str", "bool", "list", "tuple", "dict", "set", "frozenset", "bytes", "complex",
    "range", "object",
)  # fmt: skip
"""Types that are sent by their names, as are the built-in exceptions."""
OWN_MODULE = "program"
"""`__module__` of the classes that a program defines."""
REFERENCE = "o"
"""First word of the references that `encode` gets from its caller."""


class Unreadable(Exception):
    """The wire form is invalid."""


class _Value(NamedTuple):
    """How values of a class of the standard library are sent."""

    module: str
    attributes: tuple[str, ...]
    """Attributes, or methods without arguments, that give the parts."""
    types: tuple[Any, ...]
    """Types of these; some classes read texts too, which could say enormous numbers."""
    maker: str = ""
    """Class method that takes them; empty for the class itself."""

    def parts(self, value: Any) -> list[Any]:  # noqa: ANN401 (of the class)
        """Return the plain values that a value consists of."""
        read: list[Any] = [getattr(value, name) for name in self.attributes]
        return [part() if callable(part) else part for part in read]


_ISO = (("isoformat",), (str,), "fromisoformat")
_VALUES = {
    "Decimal": _Value("decimal", ("__str__",), (str,)),
    "Fraction": _Value("fractions", ("numerator", "denominator"), (int, int)),
    "range": _Value("builtins", ("start", "stop", "step"), (int, int, int)),
    "datetime": _Value("datetime", *_ISO),
    "date": _Value("datetime", *_ISO),
    "time": _Value("datetime", *_ISO),
    "timedelta": _Value("datetime", ("days", "seconds", "microseconds"), (int, int, int)),
    "UUID": _Value("uuid", ("__str__",), (str,)),
}
"""Name of a class -> how it is sent; a datetime is a date too, and stands before it."""


def encode(value: Any, refer: Callable[[Any], list[Any]]) -> Any:  # noqa: ANN401 (any value, and its JSON)
    """Return the wire form of a value.

    Args:
        value: any object.
        refer: object -> a reference to it, for objects that are not plain values.
    """
    return refer(value) if is_derived(value) else encode_plain(value, refer)


def is_derived(value: object) -> bool:
    """Return whether a value is of a class that the program derived from a plain one."""
    return type(value).__module__ == OWN_MODULE and isinstance(value, _PLAIN)


_PLAIN = (str, int, float, complex, bytes, bytearray, list, tuple, set, frozenset, dict)


def encode_plain(value: Any, refer: Callable[[Any], list[Any]]) -> Any:  # noqa: ANN401 (any value, and its JSON)
    """Return the wire form of a value, without the class that a program derived for it."""
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
            return [kind, *[encode(one, refer) for one in cast("list[Any]", value)]]
        case dict():
            pairs = cast("dict[Any, Any]", value).items()
            return ["d", *[[encode(key, refer), encode(one, refer)] for key, one in pairs]]
        case _:
            return _encode_object(value, refer)


def _encode_object(value: Any, refer: Callable[[Any], list[Any]]) -> list[Any]:  # noqa: ANN401 (any value)
    if isinstance(value, type):
        return ["y", value.__name__] if _sent_type(value.__name__) is value else refer(value)
    if name := _sent_class(cast("type[Any]", type(value))):
        return ["v", name, *[encode(part, refer) for part in _VALUES[name].parts(value)]]
    return refer(value)


def _sent_class(kind: type[Any]) -> str:
    """Return the name in `_VALUES` of a class; empty if it has none."""
    for name, sent in _VALUES.items():
        # a class is not loaded for values that cannot be of it
        own = getattr(sys.modules.get(sent.module), name, None)
        if isinstance(own, type) and issubclass(kind, own):
            return name
    return ""


def _sent_type(name: str) -> Any:  # noqa: ANN401 (a class, or None)
    """Return the class that is sent by this name; None if there is none."""
    if name in _VALUES:
        return getattr(sys.modules.get(_VALUES[name].module), name, None)
    found: Any = getattr(builtins, name, None)
    is_error = isinstance(found, type) and issubclass(found, BaseException)
    return cast("Any", found) if name in PLAIN_TYPES or is_error else None


def decode(wire: Any, held: Callable[[list[Any]], Any]) -> Any:  # noqa: ANN401 (whatever was sent)
    """Return the value of a wire form.

    Args:
        wire: any result of `json.loads`.
        held: reference -> the object, for objects that are not plain values.

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
    except (TypeError, ValueError, ArithmeticError) as error:
        raise Unreadable(str(error)) from error


_COLLECTIONS: dict[str, Callable[[list[Any]], Any]] = {"l": list, "t": tuple, "s": set}


def _decoded(kind: Any, parts: list[Any], held: Callable[[list[Any]], Any]) -> Any:  # noqa: ANN401
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
        case "v", [str(name), *more] if name in _VALUES:
            return _made(name, [decode(part, held) for part in more])
        case "y", [str(name)] if (found := _sent_type(name)) is not None:
            return found
        case "o", _:
            return held(parts)
        case _:
            raise Unreadable("no such kind")


def _made(name: str, parts: list[Any]) -> Any:  # noqa: ANN401 (a value of the class)
    sent = _VALUES[name]
    if len(parts) != len(sent.types) or not all(map(isinstance, parts, sent.types)):
        raise Unreadable(f"parts of no {name}")
    own = getattr(importlib.import_module(sent.module), name)
    return (getattr(own, sent.maker) if sent.maker else own)(*parts)

"""BFCL's check of calls against accepted values (`ast_checker.py` of ShishirPatil/gorilla).

Its rules, quirks included, for the Python categories of BFCL v4:

- A call has the gold function's name, all its required parameters, and none that the gold lacks.
- A value has the documented type, or the type of the gold's values; an integer stands for a float.
  An array's values are checked one level deep.
- Text is compared without case and without ` ,./-_*^`, and ' counts as ". So are texts directly
  in a list, and the values of an object, each of which has a list of accepted ones.
- "" among the accepted values means that the parameter may be left out.
- Calls that may come in any order are matched greedily, in the order of the gold ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

PYTHON_TYPES: Mapping[str, type] = {
    "string": str, "integer": int, "float": float, "boolean": bool, "array": list, "tuple": list,
    "dict": dict, "any": str,
}  # fmt: skip
"""Maps a type in a function's document to Python's type; "any" is text, as upstream."""
_NESTED = ("array", "tuple")
_LEFT_OUT = re.compile(r"[ ,./\-_*^]")

Document = Mapping[str, Any]
"""A function as BFCL describes it: `name`, and `parameters` with `properties` and `required`."""
GoldCall = Mapping[str, Mapping[str, Sequence[Any]]]
"""Maps one function's name to its parameters and their accepted values."""


class WrittenCall(NamedTuple):
    """A call as the policy wrote it, by the name in the function's document."""

    name: str
    arguments: Mapping[str, Any]


def calls_fault(
    documents: Sequence[Document], calls: Sequence[WrittenCall], gold: Sequence[GoldCall]
) -> str:
    """Return what is wrong with `calls`, or "" if `gold` accepts them.

    Args:
        documents: documents of the offered functions, including those of the gold calls.
        calls: calls of one message, in any order.
        gold: one entry for each call that has to be made.
    """
    if len(calls) != len(gold):
        return f"{len(calls)} calls, where {len(gold)} have to be made"
    by_name: dict[str, Document] = {}
    for document in documents:
        by_name.setdefault(str(document["name"]), document)
    left = list(calls)
    for wanted in gold:
        ((name, accepted),) = wanted.items()
        faults: list[str] = []
        for place, call in enumerate(left):
            fault = _call_fault(by_name[name], call, accepted)
            if not fault:
                del left[place]
                break
            faults.append(fault)
        else:
            return f"no call is the gold call of {name}: {'; '.join(faults)}"
    return ""


def _call_fault(
    document: Document, call: WrittenCall, accepted: Mapping[str, Sequence[Any]]
) -> str:
    if call.name != document["name"]:
        return f"a call of {call.name}"
    parameters = cast("Mapping[str, Any]", document["parameters"])
    for name in parameters.get("required", ()):
        if name not in call.arguments:
            return f"{name} is required"
    for name, value in call.arguments.items():
        described = parameters["properties"].get(name)
        if described is None or name not in accepted:
            return f"{name} is no parameter of the gold call"
        if not _is_accepted(value, accepted[name], described):
            return f"{name} is {value!r}"
    for name, values in accepted.items():
        if name not in call.arguments and "" not in values:
            return f"{name} is left out"
    return ""


class _Typed(NamedTuple):
    """Whether a value has a fitting type, and whether it has the gold's type instead."""

    fits: bool
    is_variable: bool


def _is_accepted(value: Any, accepted: Sequence[Any], described: Mapping[str, Any]) -> bool:  # noqa: ANN401 (any JSON)
    kind = str(described["type"])
    expected = PYTHON_TYPES[kind]
    inner: type | None = None
    if kind in _NESTED:
        items = cast("Mapping[str, Any]", described.get("items") or {})
        inner = PYTHON_TYPES.get(str(items.get("type")))
    if kind == "float" and type(value) is int:
        value = _as_float(value)
    typed = _typed(value, accepted, expected, inner)
    if not typed.fits:
        return False
    if typed.is_variable:
        return value in accepted
    if expected is dict:
        return any(_is_object(value, one) for one in accepted if one != "")
    if expected is list and inner is dict:
        return any(_is_list_of_objects(value, one) for one in accepted)
    if expected is str:
        return standard_text(value) in [standard_text(one) for one in accepted if type(one) is str]
    if expected is list:
        return _standard(value) in [_standard(one) for one in accepted]
    return value in accepted


def _as_float(value: int) -> float | int:
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits, which is too large for a float
        return value


def _typed(value: object, accepted: Sequence[Any], expected: type, inner: type | None) -> _Typed:
    given = next((one.__class__ for one in accepted if one != ""), None)
    is_other = given is not None and given is not expected
    if type(value) is expected:
        parts = cast("list[Any]", value)
        if inner is None:
            return _Typed(fits=True, is_variable=is_other)
        for one in accepted:
            # a value that is no list, like the "" of an optional parameter, fits every list
            if type(one) is not list or all(
                _typed(part, cast("list[Any]", one), inner, None).fits for part in parts
            ):
                return _Typed(fits=True, is_variable=is_other)
        return _Typed(fits=False, is_variable=False)
    return _Typed(fits=given is not None and type(value) is given, is_variable=True)


def standard_text(text: str) -> str:
    """Return text in the form in which it is compared."""
    return _LEFT_OUT.sub("", text).lower().replace("'", '"')


def _standard(value: object) -> object:
    """Return a list with its texts as they are compared; [] for "", as upstream."""
    if not isinstance(value, list | str):
        return value
    parts = cast("Sequence[Any]", value)
    return [standard_text(one) if type(one) is str else one for one in parts]


def _is_object(value: object, accepted: object) -> bool:
    if not isinstance(value, dict) or not isinstance(accepted, dict):
        return False
    given = cast("dict[str, Any]", value)
    wanted = cast("dict[str, Sequence[Any]]", accepted)
    for name, one in given.items():
        if name not in wanted:
            return False
        said = standard_text(one) if type(one) is str else one
        if said not in [standard_text(it) if type(it) is str else it for it in wanted[name]]:
            return False
    return all(name in given or "" in values for name, values in wanted.items())


def _is_list_of_objects(value: list[Any], accepted: Sequence[Any]) -> bool:
    # of "" the empty list, as upstream has it
    return len(value) == len(accepted) and all(map(_is_object, value, accepted))

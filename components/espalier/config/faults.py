"""Error messages for faults of a profile, which name its keys as the user writes them."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails


def explained(
    path: Path, error: ValidationError, model: type[BaseModel], overridden: Sequence[str] = ()
) -> str:
    """Message with a line for each fault: key, fault, and the nearest valid name for a wrong one.

    Args:
        path: file of the profile.
        error: error of parsing it.
        model: class that it was parsed into.
        overridden: keys whose value is not the file's, but of `--set` or of a form.
    """
    faults = fault_lines(error, model)
    lines = [f"{path}: {len(faults)} fault(s) in the profile"]
    for line in faults:
        # a key's section too: the fault of an unknown one, or of keys that do not go together
        named = f"{_AFTER_KEY.split(line, maxsplit=1)[0]}."
        is_given = any(
            f"{key}.".startswith(named) or named.startswith(f"{key}.") for key in overridden
        )
        lines.append(f"--set {line}" if is_given else line)
    if all(line.startswith("--set ") for line in lines[1:]):
        lines[0] = f"{path} with --set: {len(faults)} fault(s)"
    return "\n  ".join(lines)


_AFTER_KEY = re.compile(r"[^\w.]")
"""What ends the key at the beginning of a fault's line."""


def fault_lines(
    error: ValidationError, model: type[BaseModel], *, within: Sequence[str] = ()
) -> list[str]:
    """Every fault as `key: message`.

    Args:
        error: error of parsing.
        model: class that was parsed into.
        within: keys of the parsed section, unless it was the whole profile.
    """
    lines: list[str] = []
    for fault in _without_members(error.errors()):
        keys, owner, found = _resolved(fault["loc"], model)
        place = [*within, *keys]
        said = fault["msg"].removeprefix("Value error, ")
        named, colon, rest = said.partition(": ")
        if colon and any(named in one.model_fields for one in found):  # a key of the section itself
            place, said = [*place, named], rest
        where = ".".join(place) or "profile"
        context = fault.get("ctx", {})
        match fault["type"]:
            case "extra_forbidden":
                message = f"no such key{_nearest_key(place, owner)}"
            case "union_tag_invalid":
                tag, tags = str(context["tag"]), str(context["expected_tags"])
                kind = str(context["discriminator"]).strip("'").replace("name", "rule")
                names = [name.strip(" '") for name in tags.split(",")]
                close = difflib.get_close_matches(tag, names, n=1)
                there = f"there are {', '.join(sorted(names))}"
                hint = f"did you mean {close[0]}?" if close else there
                message = f"no {kind} is named {tag!r}; {hint}"
            case "union_tag_not_found":
                message = "a rule is chosen by its name, which is missing here"
            case "value_error" | "missing":
                message = said
            case kind:
                allowed = _ALLOWED.get(kind, fault["msg"])
                message = f"{allowed} (it is {_shown(fault['input'])})"
        # a section that is parsed separately has put the key into its messages already
        placed = message.startswith((f"{where}.", f"{where}:"))
        lines.append(message if placed else f"{where}: {message}")
    return lines


_ALLOWED = {
    "model_type": "Input should be a section",
    "model_attributes_type": "Input should be a section",
    "dict_type": "Input should be a section",
    "path_type": "Input should be a path",
}
"""Type of a fault -> message, where pydantic's own is about Python."""
_SHOWN = 60
"""Characters of a wrong value that a message repeats."""
_MEMBER = re.compile(
    r"(bool|int|float|str|none)|(literal|function|constrained|list|tuple|dict|nullable|"
    r"is-instance|lax-or-strict|json-or-python)[-\[].*",
    re.DOTALL,
)
"""Name that pydantic gives a member of a union, after the key in the location of a fault."""


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _without_members(faults: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Join the faults of one value that is none of a union's members into one fault."""
    joined: dict[object, ErrorDetails] = {}
    for place, fault in enumerate(faults):
        location = fault["loc"]
        if not (location and _MEMBER.fullmatch(str(location[-1]))):
            joined[place] = fault
        elif (first := joined.get(location[:-1])) is None:
            joined[location[:-1]] = {**fault, "loc": location[:-1], "type": "union"}
        else:
            also = fault["msg"].removeprefix("Input should be ")
            joined[location[:-1]] = {**first, "msg": f"{first['msg']}, or {also}"}
    return list(joined.values())


def _nearest_key(place: Sequence[str], owner: type[BaseModel] | None) -> str:
    if owner is None:
        return ""
    close = difflib.get_close_matches(place[-1], owner.model_fields, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {'.'.join((*place[:-1], close[0]))}?"
    return f"; valid keys here: {', '.join(sorted(owner.model_fields))}"


def _resolved(
    location: Sequence[int | str], model: type[BaseModel]
) -> tuple[list[str], type[BaseModel] | None, list[type[BaseModel]]]:
    """Keys of a fault's location as a profile has them, the model of the last key, and its values.

    pydantic adds the name of the chosen rule to the location, which is not a key of the profile:
    `training.algorithm.loss.ppo_clip.clip_low` is `training.algorithm.loss.clip_low` there.
    """
    keys: list[str] = []
    owners: list[type[BaseModel]] = [model]
    owner: type[BaseModel] | None = model
    for part in location:
        chosen = [m for m in owners if part in _tags(m)] if len(owners) > 1 else []
        if chosen:
            owners = chosen
            continue
        owner = owners[0] if len(owners) == 1 else None
        keys.append(str(part))
        if isinstance(part, int):  # an item of a list: its rules are those of the list
            continue
        field = owner.model_fields.get(part) if owner else None
        owners = list(_models(field.annotation)) if field else []
    return keys, owner, owners


def _tags(model: type[BaseModel]) -> set[object]:
    """Values of the fields that allow only one value, as discriminators do."""
    literals = (f.annotation for f in model.model_fields.values())
    values = [get_args(one) for one in literals if get_origin(one) is Literal]
    return {one[0] for one in values if len(one) == 1}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:  # noqa: ANN401 (any annotation)
    """Models that a field with this annotation may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is Annotated:
        yield from _models(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType, tuple, list):
        for part in get_args(annotation):
            yield from _models(part)

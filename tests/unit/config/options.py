"""Every option of some sections of the profile, found in the configuration classes themselves.

An option is a key with one value: of a choice, a switch, a rule by its name, a part that is not
there by default, or a number whose default is the least that it can be, and that is raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from espalier.algorithms.presets import PRESETS
from espalier.config import Profile

SECTIONS = ("training", "rollout", "reward", "curriculum", "self_play", "episode", "policy")


_JUDGES = [{"url": "https://host/v1", "model": str(number)} for number in range(3)]
SAMPLES = {
    **{"model": "DIR", "upper": 2.0, "count": 2, "models": _JUDGES, "endpoint": _JUDGES[0]},
    **{"coefficient": 0.1, "target": 0.1},
}
"""Values of keys without a default, by their names."""


class Option(NamedTuple):
    """A key, and a value of it as TOML has it."""

    key: str
    value: Any

    @property
    def shown(self) -> str:
        return f"{self.key}={self.value}"


def all_options() -> list[Option]:
    """Those of `SECTIONS`, presets included."""
    found = [Option("training.algorithm.preset", name) for name in PRESETS]
    for section in SECTIONS:
        found += _field_options(section, Profile.model_fields[section])
    return found


def pairs(options: list[Option]) -> Iterator[tuple[Option, Option]]:
    """Two options each, unless one is within the other or both are of one key."""
    for one, other in combinations(options, 2):
        shorter, longer = sorted((f"{one.key}.", f"{other.key}."), key=len)
        if not longer.startswith(shorter):
            yield one, other


def _field_options(key: str, field: FieldInfo) -> Iterator[Option]:
    kinds = [kind for kind in _kinds(field.annotation) if kind is not NoneType]
    optional = len(kinds) < len(list(_kinds(field.annotation)))
    models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    is_list = get_origin(_bare(field.annotation)) is tuple
    if models and (len(models) > 1 or optional or is_list):
        for model in models:
            values = [{**_tag(model), **_required(model)}]
            values += [{**values[0], name: one} for name, one in _choices(model)]
            yield from (Option(key, [value] if is_list else value) for value in values)
        return
    for model in models:
        for name, inner in model.model_fields.items():
            yield from _field_options(f"{key}.{name}", inner)
    yield from (Option(key, value) for value in _values(field, kinds))


def _values(field: FieldInfo, kinds: list[Any]) -> Iterator[Any]:
    for kind in kinds:
        if get_origin(kind) is Literal and len(get_args(kind)) > 1:
            yield from (value for value in get_args(kind) if value != field.default)
        elif kind is bool:
            yield not field.default
        elif kind is Path and field.default is None:
            yield "DIR"
    if field.annotation in (int, float) and field.is_required():
        return
    least = [getattr(rule, "ge", None) for rule in field.metadata]
    if any(bound is not None and bound == field.default for bound in least):
        yield field.default + 1 if isinstance(field.default, int) else 0.1


def _choices(model: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        kinds = [kind for kind in _kinds(field.annotation) if kind is not NoneType]
        yield from ((name, value) for value in _values(field, kinds))


def _tag(model: type[BaseModel]) -> dict[str, str]:
    tags = {name: get_args(f.annotation) for name, f in model.model_fields.items()}
    return {name: values[0] for name, values in tags.items() if name == "name" and values}


def _required(model: type[BaseModel]) -> dict[str, Any]:
    needed = [
        name for name, field in model.model_fields.items() if field.is_required() and name != "name"
    ]
    return {name: SAMPLES[name] for name in needed}


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _kinds(annotation: Any) -> Iterator[Any]:
    annotation = _bare(annotation)
    if get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _kinds(part)
    elif get_origin(annotation) is tuple and get_args(annotation):
        yield from (
            kind
            for kind in _kinds(get_args(annotation)[0])
            if isinstance(kind, type) and issubclass(kind, BaseModel)
        )
    else:
        yield annotation

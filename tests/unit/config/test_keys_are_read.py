"""Every key of a profile is read by code that is not there to check it."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

import espalier
from espalier.config import Profile

COMPONENTS = Path(espalier.__file__).parents[1]


def models_of(annotation) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_of(argument)


def keys_below(model: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[str]:
    seen.add(model)
    for name, field in model.model_fields.items():
        yield f"{model.__name__}.{name}"
        for inner in models_of(field.annotation):
            if inner not in seen:
                yield from keys_below(inner, seen)


def _is_check(node: ast.AST) -> bool:
    """Whether a function only judges or completes what a profile says."""
    decorators = getattr(node, "decorator_list", ())
    return any("validator" in ast.unparse(one) for one in decorators)


def reads_in(node: ast.AST) -> Iterator[str]:
    if _is_check(node):
        return
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield node.attr
    for child in ast.iter_child_nodes(node):
        yield from reads_in(child)


def unread(keys, names):
    """Keys whose name nobody reads; those of one name are not told apart."""
    return sorted(key for key in keys if key.partition(".")[2] not in names)


def test_no_key_of_a_profile_is_dead():
    """A setting was taken, and never reached the engine (pytorch/rl#4016)."""
    names = {
        name
        for path in COMPONENTS.rglob("*.py")
        for name in reads_in(ast.parse(path.read_text(encoding="utf-8")))
    }
    keys = set(keys_below(Profile, set()))
    assert len(keys) > 400
    assert unread(keys, names) == []


def test_a_dead_key_is_noticed():
    source = """
class Section(BaseModel):
    kept: int = 1
    dead: int = 1

    @model_validator(mode="after")
    def _agree(self):
        assert self.dead < self.kept
        return self

def use(section):
    section.dead = 3
    return section.kept
"""
    assert unread(["Section.kept", "Section.dead"], set(reads_in(ast.parse(source)))) == [
        "Section.dead"
    ]


def keys_of(section, path=()):
    """Path, annotation and value of every key of a section and of those in it."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from keys_of(value, (*path, name))
        else:
            yield (*path, name), field.annotation, value


def other_values(annotation, value):
    """Values that a key of this type may have beside `value`, the likeliest first."""
    if get_origin(annotation) is Literal:
        yield from (each for each in get_args(annotation) if each != value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value + 1, value / 2, 2 * value, 0.5, 64)
    elif isinstance(value, str):
        yield from ("other", "7", "7Gi", "a:b")
    elif isinstance(value, tuple):
        yield from (value[:-1], ("other",), (0.25, 0.75))
    elif value is None:
        yield from (1, 0.5, "other", True)


def with_key(path, value):
    """The value that a profile with this key set has in a step, which gets it as JSON; or None."""
    given = value
    for name in reversed(path):
        given = {name: given}
    try:
        profile = Profile.model_validate({"name": "x", **given})
    except ValidationError:  # it does not go with the other keys
        return None
    found = Profile.model_validate_json(profile.model_dump_json())
    for name in path:
        found = getattr(found, name)
    return found


def test_a_key_that_is_set_keeps_its_value():
    """Defaults, presets and validators of other keys change nothing of what a profile says."""
    kept, changed = set(), {}
    for path, annotation, value in keys_of(Profile(name="x")):
        for other in other_values(annotation, value):
            if (found := with_key(path, other)) is not None:
                kept.add(path)
                if found != other and str(found) != str(other):
                    changed[path] = other, found
                break
    assert changed == {}
    assert len(kept) > 260

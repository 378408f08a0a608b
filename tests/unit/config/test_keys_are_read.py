"""Every key of a profile is read by code that is not there to check it."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

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

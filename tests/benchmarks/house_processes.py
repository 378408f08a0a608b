"""The processes that `tests.benchmarks.house` starts: keys of a profile, a training's modules.

    python tests/benchmarks/house_processes.py keys|process TREE

Imports the library of TREE, which PYTHONPATH names, and nothing of the benchmarks, so that earlier
commits are counted too. The last line is one JSON object.
"""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin


def main() -> None:
    """Print the figures that the first argument names."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    print(json.dumps(keys(folder) if name == "keys" else {"loaded": loaded_by_import()}))


def keys(folder: Path) -> dict[str, int]:
    """How many keys a profile has, and how many of them shipped profiles set."""
    from espalier.config import Profile, family_class, family_names

    known = set(_key_paths(Profile, ()))
    known.discard(("environment",))
    for family in family_names():
        known |= set(_key_paths(family_class(family).config, ("environment",)))
    shipped: set[tuple[str, ...]] = set()
    for path in sorted((folder / "pipelines" / "profiles").glob("*.toml")):
        shipped |= set(_set_paths(tomllib.loads(path.read_text(encoding="utf-8")), ()))
    used = sum(any(_names(key, given) for given in shipped) for key in known)
    return {"keys": len(known), "shipped_keys": used}


def _key_paths(model: Any, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        sections = list(_sections(field.annotation))
        if not sections:
            yield (*above, name)
        for is_table, section in sections:
            yield from _key_paths(section, (*above, name, *(["*"] if is_table else [])))


def _sections(annotation: Any) -> Iterator[tuple[bool, Any]]:
    """Sections that a key may hold, and whether they stand below names of the user's."""
    from pydantic import BaseModel

    origin, arguments = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and origin is None and issubclass(annotation, BaseModel):
        yield False, annotation
    elif origin is Annotated:
        yield from _sections(arguments[0])
    elif origin in (Union, UnionType, tuple, list):
        for part in arguments:
            yield from _sections(part)
    elif origin is dict:
        yield from ((True, section) for _, section in _sections(arguments[1]))


def _set_paths(content: Any, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield above
    if isinstance(content, dict):
        for name, value in content.items():
            yield from _set_paths(value, (*above, name))
    elif isinstance(content, list):
        for value in content:
            yield from _set_paths(value, above)


def _names(key: Sequence[str], given: Sequence[str]) -> bool:
    return len(key) == len(given) and all(
        part in ("*", other) for part, other in zip(key, given, strict=True)
    )


def loaded_by_import() -> list[str]:
    """Modules that are there once the training stage and the default family are imported."""
    importlib.import_module("espalier.stages.train")
    from espalier.config import Profile, family_class

    family_class(Profile().environment.name)
    return sorted(sys.modules)


if __name__ == "__main__":
    main()

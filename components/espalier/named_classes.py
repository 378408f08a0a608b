"""Classes that a profile names by where they are, as `my_package.rules:GroupMedian`.

A rule, a reward term or a sandbox backend of another package is the section of the profile as well:
its fields are the keys, beside the one that names it. Naming a class runs the code of its module.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import (
    BaseModel,
    GetCoreSchemaHandler,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
)
from pydantic_core import CoreSchema, core_schema

from espalier.records import file_digest, json_digest

T = TypeVar("T")

OWN_PACKAGES = (
    "espalier",
    "espalier_environments",
    "espalier_interop",
    "espalier_search",
    "espalier_ui",
)
"""The packages that espalier's version names; a user's package is named by its sources."""


def is_class_path(name: object) -> bool:
    """Whether a name says where a class is, as module:Class."""
    return isinstance(name, str) and ":" in name


def loaded(where: str) -> Any:  # noqa: ANN401 (whatever is there)
    """What a module has under a name, both written as module:Class.

    Raises:
        ValueError: there is no such module, or nothing of that name in it.
    """
    module, _, attribute = where.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{where!r} cannot be loaded ({error})") from error


def class_at(where: str, *bases: type[T]) -> type[T]:
    """The class at module:Class.

    Raises:
        ValueError: it cannot be loaded, is derived from none of `bases`, or lacks a method.
    """
    found = loaded(where)
    if not (isinstance(found, type) and issubclass(found, bases)):
        names = " or ".join(f"{base.__module__}.{base.__name__}" for base in bases)
        raise ValueError(f"{where} is no class derived from {names}")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(cast("Any", found).__abstractmethods__))
        raise ValueError(f"{where} does not define {missing}")
    return found


@dataclass(frozen=True, slots=True)
class OpenTo:
    """Lets a union of sections take classes of other packages too, as metadata of its annotation.

    `Annotated[Grpo | Rloo, Field(discriminator="name"), OpenTo((CreditRule,))]` reads
    {name = "my_rules:GroupMedian", scale = 2.0} as a `GroupMedian` whose scale is 2.
    """

    bases: tuple[type[BaseModel], ...]
    """A class has to be derived from one of them."""
    key: str = "name"
    """The field that names the class."""

    def __get_pydantic_core_schema__(
        self,
        source: Any,  # noqa: ANN401 (any annotation)
        handler: GetCoreSchemaHandler,
    ) -> CoreSchema:
        """Wrap the union's schema; what it holds is written with all fields of its own class."""
        return core_schema.with_info_wrap_validator_function(
            self._read, handler(source), serialization=core_schema.simple_ser_schema("any")
        )

    def _read(
        self, value: object, read_member: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> object:
        if isinstance(value, self.bases) and is_class_path(getattr(value, self.key, None)):
            return value
        if not (isinstance(value, Mapping) and is_class_path(value.get(self.key))):
            return read_member(value)
        section = cast("Mapping[str, Any]", value)
        where: str = section[self.key]
        found = class_at(where, *self.bases)
        if self.key not in found.model_fields:
            raise ValueError(
                f'{where} has no field "{self.key}", which says where it is: write '
                f'"{self.key}: str" into the class'
            )
        context: dict[str, Any] = info.context or {}
        return found.model_validate(section, extra=context.get("extra"), context=context)


def package_digest(owner: type) -> str | None:
    """Digest of the Python sources of the package that a class is from; None for espalier's own.

    The sources of espalier itself are named by their version.
    """
    module = owner.__module__
    package = module.partition(".")[0]
    if package in OWN_PACKAGES:
        return None
    # a namespace package has no file of its own: the class's module stands for it
    given = sys.modules[package].__file__ or sys.modules[module].__file__
    if given is None:
        return None
    path = Path(given)
    sources = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    return json_digest(
        {source.relative_to(path.parent).as_posix(): file_digest(source) for source in sources}
    )

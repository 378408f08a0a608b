"""A real registry in sqlite, as the registry's own tests have it."""

from tests.unit.registry.conftest import (  # noqa: F401 (pytest finds fixtures by name)
    _clean_environment,
    bench,
    parent,
    target,
)

from tests.unit.orchestration.conftest import (  # noqa: F401 (pytest finds fixtures by name)
    without_source_lines,
)

# pytest finds fixtures by name
from tests.unit.orchestration.conftest import without_source_lines  # noqa: F401
from tests.unit.pauses import pauses  # noqa: F401

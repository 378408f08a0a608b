from tests.unit.pauses import pauses  # noqa: F401 (pytest finds fixtures by name)

"""Sandboxes: where an agent's programs run."""

__all__: list[str] = []

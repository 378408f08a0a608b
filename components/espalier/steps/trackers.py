"""Several listeners of one stage as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from espalier.records import Progress, Tracker


class CompositeTracker:
    """Tells every listener everything, in order."""

    def __init__(self, *listeners: Tracker) -> None:
        self._listeners = listeners

    def params(self, values: Mapping[str, object]) -> None:
        """Record settings of the stage."""
        for listener in self._listeners:
            listener.params(values)

    def metrics(self, values: Mapping[str, float], *, step: int | None = None) -> None:
        """Record figures."""
        for listener in self._listeners:
            listener.metrics(values, step=step)

    def artifact(self, path: Path) -> None:
        """Record a small file."""
        for listener in self._listeners:
            listener.artifact(path)

    def episodes(self, episodes: Sequence[Mapping[str, object]]) -> None:
        """Record some trajectories."""
        for listener in self._listeners:
            listener.episodes(episodes)

    def note(self, line: str) -> None:
        """Say one line."""
        for listener in self._listeners:
            listener.note(line)

    @contextmanager
    def progress(self, description: str, total: int) -> Iterator[Progress]:
        """One count that moves every listener's bar."""
        with ExitStack() as stack:
            parts = [
                stack.enter_context(listener.progress(description, total))
                for listener in self._listeners
            ]
            yield _CompositeProgress(parts)


class _CompositeProgress:
    def __init__(self, parts: Sequence[Progress]) -> None:
        self._parts = parts

    def advance(self, count: int = 1, **shown: float) -> None:
        """Move every bar."""
        for part in self._parts:
            part.advance(count, **shown)

"""The interface for reports of a running stage; MLflow and the terminal implement it."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol


class Progress(Protocol):
    """A counted piece of work in progress."""

    def advance(self, count: int = 1, **shown: float) -> None:
        """Count `count` more units as done; `shown` are figures to print beside the bar."""
        ...


class Tracker(Protocol):
    """Receives one stage's reports. Nothing that a stage returns may depend on it."""

    def params(self, values: Mapping[str, object]) -> None:
        """Record settings of the stage."""
        ...

    def metrics(self, values: Mapping[str, float], *, step: int | None = None) -> None:
        """Record figures, optionally at an optimizer step."""
        ...

    def artifact(self, path: Path) -> None:
        """Record a small file (a report, a table)."""
        ...

    def episodes(self, episodes: Sequence[Mapping[str, object]]) -> None:
        """Record some trajectories, each a mapping.

        Its keys are `task_id`; `messages` in OpenAI's format; `reward`, a number or named terms;
        `finish_reason`; `tools`, the tool's name for each message of the role tool.
        """
        ...

    def note(self, line: str) -> None:
        """Show one line of text."""
        ...

    def progress(self, description: str, total: int) -> AbstractContextManager[Progress]:
        """Return a bar (or plain lines, without a terminal) of `total` units."""
        ...


class NullTracker:
    """A tracker that ignores everything."""

    def params(self, values: Mapping[str, object]) -> None:
        """Ignore."""

    def metrics(self, values: Mapping[str, float], *, step: int | None = None) -> None:
        """Ignore."""

    def artifact(self, path: Path) -> None:
        """Ignore."""

    def episodes(self, episodes: Sequence[Mapping[str, object]]) -> None:
        """Ignore."""

    def note(self, line: str) -> None:
        """Ignore."""

    @contextmanager
    def progress(self, description: str, total: int) -> Generator[Progress]:
        """Ignore."""
        yield _NoProgress()


class _NoProgress:
    def advance(self, count: int = 1, **shown: float) -> None:
        """Ignore."""


class CompositeTracker:
    """Forwards every call to several trackers, in order."""

    def __init__(self, *trackers: Tracker) -> None:
        self.trackers = trackers

    def params(self, values: Mapping[str, object]) -> None:
        """Record settings of the stage."""
        for tracker in self.trackers:
            tracker.params(values)

    def metrics(self, values: Mapping[str, float], *, step: int | None = None) -> None:
        """Record figures."""
        for tracker in self.trackers:
            tracker.metrics(values, step=step)

    def artifact(self, path: Path) -> None:
        """Record a small file."""
        for tracker in self.trackers:
            tracker.artifact(path)

    def episodes(self, episodes: Sequence[Mapping[str, object]]) -> None:
        """Record some trajectories."""
        for tracker in self.trackers:
            tracker.episodes(episodes)

    def note(self, line: str) -> None:
        """Forward one line."""
        for tracker in self.trackers:
            tracker.note(line)

    @contextmanager
    def progress(self, description: str, total: int) -> Generator[Progress]:
        """Yield a progress that advances those of all trackers."""
        with ExitStack() as stack:
            parts = [
                stack.enter_context(tracker.progress(description, total))
                for tracker in self.trackers
            ]
            yield _CompositeProgress(parts)


class _CompositeProgress:
    def __init__(self, parts: Sequence[Progress]) -> None:
        self._parts = parts

    def advance(self, count: int = 1, **shown: float) -> None:
        """Advance every progress."""
        for part in self._parts:
            part.advance(count, **shown)

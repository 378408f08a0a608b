"""What a stage says on stderr: bars on a terminal, aligned lines in a log.

train          step  reward  pass_rate  zero_variance_share
train            12   0.431      0.380                0.625
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from espalier.records import Progress as WorkProgress

LINE_INTERVAL_S = 5.0
"""A log gets at most one line of figures in this time, and always the last one of a bar."""
_NAME_WIDTH = 17  # the longest stage name
_MAX_COLUMNS = 14
"""Of a table; what a stage names first is shown, and all of it is in the history and in MLflow."""


class ConsoleTracker:
    """One stage's listener on the terminal."""

    def __init__(self, stage: str, console: Console | None = None) -> None:
        self._stage = stage
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._columns: dict[str, int] = {}
        self._next_line = 0.0
        self._is_table_open = False

    def params(self, values: Mapping[str, object]) -> None:
        """Nothing: settings are in RUN/profile.json."""

    def metrics(self, values: Mapping[str, float], *, step: int | None = None) -> None:
        """A line of a table where there is a step, a line of names and figures elsewhere."""
        if step is None:
            self._say(_figures(values))
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_INTERVAL_S
            self._table_line({"step": float(step), **values})

    def artifact(self, path: Path) -> None:
        """Nothing: the run's folder is named at the end."""

    def episodes(self, episodes: Sequence[Mapping[str, object]]) -> None:
        """Nothing: the report shows them."""

    def note(self, line: str) -> None:
        """Say the line."""
        self._say(line)

    @contextmanager
    def progress(self, description: str, total: int) -> Iterator[WorkProgress]:
        """A bar on a terminal; elsewhere lines, unless a table of figures shows how far it is."""
        if self._console.is_terminal:
            with _bars(self._console) as bars:
                label = f"{self._stage:<{_NAME_WIDTH}} {description}"
                yield _Bar(bars, bars.add_task(label, total=total, shown=""))
        else:
            self._is_table_open = False
            lines = _Lines(self._say_between_tables, description, total)
            yield lines
            self._say(lines.line())

    def _table_line(self, values: Mapping[str, float]) -> None:
        """Columns are added and never removed, so that the header is rarely said again."""
        self._is_table_open = True
        values = dict(islice(values.items(), _MAX_COLUMNS))
        if new := [name for name in values if name not in self._columns]:
            self._columns |= {name: max(len(name), 7) for name in new}
            self._say("  ".join(name.rjust(width) for name, width in self._columns.items()))
        shown = {name: _figure(value) for name, value in values.items()}
        self._say(
            "  ".join(shown.get(name, "-").rjust(width) for name, width in self._columns.items())
        )

    def _say_between_tables(self, line: str) -> None:
        if not self._is_table_open:
            self._say(line)

    def _say(self, line: str) -> None:
        self._console.print(f"{self._stage:<{_NAME_WIDTH}} {line}", markup=False)


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[shown]}"),
        console=console,
        transient=True,
    )


class _Bar:
    def __init__(self, bars: Progress, task: TaskID) -> None:
        self._bars, self._task = bars, task

    def advance(self, count: int = 1, **shown: float) -> None:
        """Move the bar."""
        if shown:
            self._bars.update(self._task, shown=_figures(shown))
        self._bars.advance(self._task, count)


class _Lines:
    def __init__(self, say: Callable[[str], None], description: str, total: int) -> None:
        self._say, self._description, self._total = say, description, total
        self._done = 0
        self._shown: dict[str, float] = {}
        self._next_line = time.monotonic() + LINE_INTERVAL_S

    def advance(self, count: int = 1, **shown: float) -> None:
        """Count, and say so when it is time."""
        self._done += count
        self._shown = shown or self._shown
        if time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_INTERVAL_S
            self._say(self.line())

    def line(self) -> str:
        """How far it is."""
        counted = f"{self._done:>{len(str(self._total))}}/{self._total}"
        return f"{self._description:<28} {counted}  {_figures(self._shown)}".rstrip()


def _figures(shown: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {_figure(value)}" for name, value in shown.items())


def _figure(value: float) -> str:
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value)}" if abs(value) < 1e12 else f"{value:.3g}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"

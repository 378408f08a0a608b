"""A stage's tracker on stderr: bars on a terminal, lines in a log.

A stage that reports figures by optimizer step gets a table with the same columns in every run, at
most 100 characters wide; all figures are in the stage's history.parquet and in MLflow.

train             step reward  pass zero_var  clip entropy  grad mismatch    loss calls dev_em  left
train               12  0.431  0.38    0.625 0.019    1.87 2.051   9e-10 -0.0301  1.41      - 12:40
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

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
from espalier.steps.pace import Pace

LINE_INTERVAL_S = 5.0
"""Seconds in which a log gets at most one line of figures; the last line is always printed."""
_NAME_WIDTH = 17  # filter_curriculum; only continue_pretraining is longer


class Column(NamedTuple):
    """A column of a stage's table."""

    figure: str
    """Name of the figure in the history."""
    title: str
    width: int


_STEP, _LEFT = Column("step", "step", 4), Column("left", "left", 5)
SUPERVISED_COLUMNS = (
    _STEP,
    Column("loss", "loss", 7),
    Column("learning_rate", "lr", 8),
    Column("grad_norm", "grad", 6),
    Column("tokens", "tokens", 6),
    Column("dev_em", "dev_em", 6),
    _LEFT,
)
TRAIN_COLUMNS = (
    _STEP,
    Column("reward", "reward", 6),
    Column("pass_rate", "pass", 5),
    Column("zero_variance_share", "zero_var", 8),
    Column("clipped_share", "clip", 5),
    Column("entropy", "entropy", 7),
    Column("grad_norm", "grad", 5),
    Column("mismatch_kl", "mismatch", 8),
    Column("loss", "loss", 7),
    Column("tool_calls", "calls", 5),
    Column("dev_em", "dev_em", 6),
    _LEFT,
)


class ConsoleTracker:
    """Prints one stage's figures on the terminal."""

    def __init__(
        self,
        stage: str,
        console: Console | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stage = stage
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._clock = clock
        self._columns = TRAIN_COLUMNS if stage == "train" else SUPERVISED_COLUMNS
        self._pace = Pace(0, clock)
        self._next_line = 0.0
        self._has_header = False
        self._is_table_open = False
        self._pending_row: tuple[int, Mapping[str, float]] | None = None

    def params(self, values: Mapping[str, object]) -> None:
        """Do nothing: settings are in RUN/profile.json."""

    def metrics(self, values: Mapping[str, float], *, step: int | None = None) -> None:
        """Print a table row if there is a step, else a line of names and figures."""
        if step is None:
            self._say(_figures(values))
            return
        self._pending_row = (step, values)
        if self._clock() >= self._next_line:
            self._next_line = self._clock() + LINE_INTERVAL_S
            self._say_row()

    def artifact(self, path: Path) -> None:
        """Do nothing: the run's folder is printed at the end."""

    def episodes(self, episodes: Sequence[Mapping[str, object]]) -> None:
        """Do nothing: the report shows episodes."""

    def note(self, line: str) -> None:
        """Print the line."""
        self._say(line)

    @contextmanager
    def progress(self, description: str, total: int) -> Iterator[WorkProgress]:
        """Show a bar on a terminal; in a log print lines, unless a table shows the progress."""
        self._pace = Pace(total, self._clock)
        if self._console.is_terminal:
            with _bars(self._console) as bars:
                label = f"{self._stage:<{_NAME_WIDTH}} {description}"
                yield _Bar(bars, bars.add_task(label, total=total, shown=""), self._pace)
            self._say_row()
        else:
            self._is_table_open = False
            lines = _Lines(self._say_between_tables, description, self._pace, self._clock)
            yield lines
            self._say_row()
            self._say(lines.line(with_figures=not self._is_table_open))

    def _say_row(self) -> None:
        """Print the newest row unless it was printed already."""
        if self._pending_row is None:
            return
        step, values = self._pending_row
        self._pending_row, self._is_table_open = None, True
        if not self._has_header:
            self._has_header = True
            self._say(" ".join(column.title.rjust(column.width) for column in self._columns))
        shown = {"step": str(step), "left": self._pace.left()}
        for column in self._columns:
            if column.figure in values:
                shown[column.figure] = _fitted(values[column.figure], column.width)
        self._say(" ".join(shown.get(c.figure, "-").rjust(c.width) for c in self._columns))

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
    def __init__(self, bars: Progress, task: TaskID, pace: Pace) -> None:
        self._bars, self._task, self._pace = bars, task, pace

    def advance(self, count: int = 1, **shown: float) -> None:
        """Move the bar."""
        self._pace.advance(count)
        if shown:
            self._bars.update(self._task, shown=_figures(shown))
        self._bars.advance(self._task, count)


class _Lines:
    def __init__(
        self,
        say: Callable[[str], None],
        description: str,
        pace: Pace,
        clock: Callable[[], float],
    ) -> None:
        self._say, self._description, self._pace, self._clock = say, description, pace, clock
        self._shown: dict[str, float] = {}
        self._next_line = clock() + LINE_INTERVAL_S

    def advance(self, count: int = 1, **shown: float) -> None:
        """Count, and print a line if the last is LINE_INTERVAL_S old."""
        self._pace.advance(count)
        self._shown = shown or self._shown
        if self._clock() >= self._next_line:
            self._next_line = self._clock() + LINE_INTERVAL_S
            self._say(self.line(with_figures=True))

    def line(self, *, with_figures: bool) -> str:
        """The progress as one line."""
        done, total = self._pace.done, self._pace.total
        parts = [f"{self._description:<28} {done:>{len(str(total))}}/{total}"]
        if done < total and (left := self._pace.left()) != "-":
            parts.append(f"left {left}")
        return "  ".join([*parts, *([_figures(self._shown)] if with_figures else [])]).rstrip()


def _figures(shown: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {_figure(value)}" for name, value in shown.items())


def _figure(value: float) -> str:
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value)}" if abs(value) < 1e12 else f"{value:.3g}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _fitted(value: float, width: int) -> str:
    """The figure with as many digits as fit into `width` characters, at least one."""
    texts = (_figure(value), *(f"{value:.{digits}g}" for digits in (3, 2, 1)))
    return next((text for text in texts if len(text) <= width), f"{value:.0e}")

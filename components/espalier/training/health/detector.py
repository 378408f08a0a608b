"""The contract of detectors, and the two tests that they are made of.

`Drift` is a one-sided cumulative sum (CUSUM, Page 1954, Biometrika 41) of how far a figure is from
the run's own beginning, in robust units:

    z_t = clip((x_t - median of the first steps) / scale_t, -4, 4)
    S_t = max(0, S_(t-1) + z_t - 1.5)                                alarm where S_t > threshold

    scale_t = max(floor, 1.4826 median |x_i - x_(i-1)| / sqrt(2))    over the steps before t

The scale comes from the differences of successive steps: a jump or a slow drift, which is what is
looked for, hardly changes their median. Steps at which the sum is above half of the threshold do
not count for it, so that a fault does not pass for noise. An outlier adds at most 2.5, so no single
step raises an alarm, nor do three. On figures without drift whose noise is normal and independent,
a threshold of 8 raises a false alarm in 1 % of runs of 200 steps, whatever the noise, and in 0.1 %
where it is no larger than the floor (600 simulated runs each; `tests/unit/training/health` repeats
a part of that). Noise that one step hands on to the next (autocorrelation 0.4) raises it in 4 %
where it is as large as the floor: floors are to be above the noise of a healthy run.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple, Protocol

from espalier.records.notices import Severity
from espalier.records.trajectory import Trajectory

Row = Mapping[str, float]
"""The figures of a step."""

FIRST_STEPS = 6
"""Steps with a figure that are its beginning, before whose end no drift is told."""
_MAD_TO_SIGMA = 1.4826
_MOST = 4.0
_SLACK = 1.5
THRESHOLD = 8.0


class Finding(NamedTuple):
    """What a detector says at a step."""

    since_step: int
    message: str
    severity: Severity = "warning"
    figure: str = ""
    """Column that shows it, where the detector watches several."""


Evidence = Callable[[Sequence[Trajectory]], Sequence[float]]
"""Takes the attempts at one task; returns how strongly each shows what a detector watches, from 0.
"""


def rises(start: Row, row: Row, prefix: str) -> dict[str, float]:
    """Return how far figures of a step are above their values in `start`.

    Args:
        start: figures of the run's beginning; one that is missing there began at 0.
        row: figures of the step.
        prefix: what their names begin with; the rest of each name is its key.
    """
    return {
        name.removeprefix(prefix): value - start.get(name, 0.0)
        for name, value in row.items()
        if name.startswith(prefix)
    }


def by_attempt(shown: Callable[[Trajectory], float]) -> Evidence:
    """Return the evidence of what an attempt shows by itself."""
    return lambda group: [shown(attempt) for attempt in group]


class Detector(Protocol):
    """Watches a run; one object for each run."""

    name: str
    figure: str
    """Column that shows what it watches."""
    key: str
    """Key of the profile to change."""
    shows: Evidence | None
    """Which attempts show it; None where no single attempt does."""

    @property
    def is_active(self) -> bool:
        """Whether what it told last still holds."""
        ...

    def observe(self, row: Row) -> Finding | None:
        """Take the figures of the next step; return a finding once for each time it begins."""
        ...


class Beginning:
    """A figure's median over the first steps that have it, and its noise from step to step."""

    def __init__(self, floor: float, steps: int = FIRST_STEPS) -> None:
        self._floor = floor
        self._steps = steps
        self._values: list[float] = []
        self._last: float | None = None
        self._changes: list[float] = []
        """Absolute differences of successive values, in ascending order."""
        self.median = 0.0

    @property
    def is_known(self) -> bool:
        """Whether the beginning is over."""
        return len(self._values) >= self._steps

    @property
    def scale(self) -> float:
        """The floor, or the noise where it is larger."""
        if not self._changes:
            return self._floor
        middle = self._changes[len(self._changes) // 2]
        return max(self._floor, _MAD_TO_SIGMA * middle / math.sqrt(2))

    def add(self, value: float, *, counts: bool = True) -> None:
        """Add the next value, of the beginning or later; `counts` says whether for the noise."""
        if not self.is_known:
            self._values.append(value)
            self.median = median(self._values)
        if counts and self._last is not None:
            insort(self._changes, abs(value - self._last))
        self._last = value


@dataclass
class Drift:
    """One figure leaves the run's beginning and stays away."""

    name: str
    figure: str
    direction: float
    """1 where rising is the fault, -1 where falling is."""
    floor: float
    """Least scale, in units of the figure; of its natural logarithm where `is_log`."""
    key: str
    meaning: str
    """The message's second half: what it means."""
    threshold: float = THRESHOLD
    shows: Evidence | None = None
    is_log: bool = False
    least: float = 0.0
    """Values below count as this: what is negligible does not drift."""
    missing: float | None = None
    """Value of a row without the figure; None leaves the row out."""
    unless: Callable[[Row, Row], bool] | None = None
    """(beginning, row) -> whether the step is excused: a policy that learns, say."""
    parts: str = ""
    """Prefix of the columns that split the figure up, if there are any. The message names the one
    that moved most."""
    _beginning: Beginning = field(init=False)
    _first: dict[str, list[float]] = field(init=False, default_factory=dict)
    _sum: float = field(init=False, default=0.0)
    _since: int = field(init=False, default=0)
    _told: bool = field(init=False, default=False)
    _away: bool = field(init=False, default=False)
    worst: float = field(init=False, default=0.0)
    """Largest sum so far, for fixing thresholds."""

    def __post_init__(self) -> None:
        self._beginning = Beginning(self.floor)

    @property
    def is_active(self) -> bool:
        """Whether the figure has not come back from the drift that was told."""
        return self._told and self._away

    @property
    def far(self) -> float | None:
        """The figure at which one step counts most; None until the beginning is known."""
        if not self._beginning.is_known:
            return None
        found = self._beginning.median + self.direction * _MOST * self._beginning.scale
        return math.exp(found) if self.is_log else found

    def observe(self, row: Row) -> Finding | None:
        """Take the figures of the next step."""
        value = row.get(self.figure, self.missing)
        if value is None or not math.isfinite(value):
            return None
        found = self._units(value)
        if not self._beginning.is_known:
            self._beginning.add(found)
            self._remember(row)
            return None
        z = self.direction * (found - self._beginning.median) / self._beginning.scale
        z = max(-_MOST, min(_MOST, z))
        if z > 0 and self.unless is not None and self.unless(self._start(), row):
            z = 0.0
        if self._sum == 0.0:
            self._since = int(row["step"])
        self._away = z > _SLACK
        self._sum = max(0.0, self._sum + z - _SLACK)
        self._beginning.add(found, counts=self._sum <= self.threshold / 2)
        self.worst = max(self.worst, self._sum)
        if self._sum == 0.0:
            self._told = False
        if self._told or self._sum <= self.threshold:
            return None
        self._told = True
        return Finding(self._since, self._message(value, row))

    def _units(self, value: float) -> float:
        value = max(value, self.least)
        return math.log(max(value, 1e-12)) if self.is_log else value

    def _remember(self, row: Row) -> None:
        for name, value in row.items():
            if math.isfinite(value):
                self._first.setdefault(name, []).append(value)

    def _start(self) -> Row:
        return {name: median(values) for name, values in self._first.items()}

    def _message(self, value: float, row: Row) -> str:
        usual = self._beginning.median
        start = math.exp(usual) if self.is_log else usual
        moved = rises(self._start(), row, self.parts) if self.parts else {}
        part = max(moved, key=lambda name: self.direction * moved[name], default=None)
        most = "" if part is None else f" (most of it {self.parts}{part})"
        return f"{self.figure} is {value:.3g}, {start:.3g} in the first steps{most}: {self.meaning}"


@dataclass
class Beyond:
    """A figure is beyond a bound that holds for every run, for some steps in a row."""

    name: str
    figure: str
    bound: float
    key: str
    meaning: str
    direction: float = 1.0
    steps: int = 1
    """Steps in a row."""
    severity: Severity = "warning"
    shows: Evidence | None = None
    _since: int = field(init=False, default=0)
    _count: int = field(init=False, default=0)
    worst: float = field(init=False, default=0.0)

    @property
    def is_active(self) -> bool:
        """Whether the newest step is still beyond the bound."""
        return self._count >= self.steps

    def observe(self, row: Row) -> Finding | None:
        """Take the figures of the next step."""
        value = row.get(self.figure)
        if value is None:
            return None
        # a figure that is not finite is beyond any bound
        is_beyond = not math.isfinite(value) or self.direction * (value - self.bound) > 0
        if not is_beyond:
            self._count = 0
            return None
        if self._count == 0:
            self._since = int(row["step"])
        self._count += 1
        self.worst = max(self.worst, self._count / self.steps)
        if self._count != self.steps:
            return None
        said = f"{self.figure} is {value:.3g}, beyond {self.bound:g}: {self.meaning}"
        return Finding(self._since, said, self.severity)

"""Runs the detectors over the steps of a run, and makes notices of what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

from espalier.records.notices import Notice
from espalier.records.trajectory import Trajectory
from espalier.training.attempt_figures import groups_by_task
from espalier.training.health.detector import FIRST_STEPS, Detector, Drift, Row, rises
from espalier.training.health.rules import HeldoutFall

_SHOWN_ATTEMPTS = 8


class HealthMonitor:
    """Watches one run."""

    def __init__(self, detectors: Sequence[Detector], clock: Callable[[], float]) -> None:
        """Watch with `detectors`; `clock` gives seconds since 1970, for the notices."""
        self._detectors = detectors
        self._clock = clock
        self._newest: dict[str, Notice] = {}
        self._first: list[Row] = []
        self.row: Row = {}
        """Figures of the newest step."""

    def begin(self, dev_em: float | None) -> None:
        """Take the dev score before training; None where it is not known."""
        for one in self._detectors:
            if isinstance(one, HeldoutFall):
                one.start = dev_em

    def replay(self, history: Iterable[Row]) -> None:
        """Take the steps that were done before a resume; what they show was told then."""
        for row in history:
            self.observe(row)

    def now(self) -> float:
        """Return seconds since 1970, for a notice."""
        return self._clock()

    def is_active(self, name: str) -> bool:
        """Return whether what a detector told last still holds."""
        return any(one.is_active for one in self._detectors if one.name == name)

    def newest(self, name: str) -> Notice:
        """Return the newest notice of a detector that has told one."""
        return self._newest[name]

    def drift(self, name: str) -> Drift | None:
        """Return the detector of that name, if it watches one figure and is not ignored."""
        found = (one for one in self._detectors if one.name == name and isinstance(one, Drift))
        return next(found, None)

    def risen(self, prefix: str) -> Mapping[str, float]:
        """Return how far figures are above the median of the run's first steps, in the newest step.

        Args:
            prefix: what their names begin with; the rest of each name is its key. One that the
                first steps do not have began at 0.
        """
        names = {name for row in self._first for name in row if name.startswith(prefix)}
        start = {name: median(row[name] for row in self._first if name in row) for name in names}
        return rises(start, self.row, prefix)

    def observe(self, row: Row, sampled: Sequence[Trajectory] = ()) -> list[Notice]:
        """Take the figures of the next step, and return what begins to show.

        Args:
            row: figures of the step.
            sampled: its scored attempts, of which a notice names those that show it most.
        """
        self.row = row
        if len(self._first) < FIRST_STEPS:
            self._first.append(row)
        notices: list[Notice] = []
        for detector in self._detectors:
            found = detector.observe(row)
            if found is not None:
                step = int(row["step"])
                notices.append(
                    Notice(
                        step=step,
                        time=self.now(),
                        detector=detector.name,
                        severity=found.severity,
                        since_step=found.since_step,
                        message=found.message,
                        attempts=_shown(detector, step, sampled),
                        key=detector.key,
                        figure=found.figure or detector.figure,
                    )
                )
        self._newest.update((notice.detector, notice) for notice in notices)
        return notices


def _shown(detector: Detector, step: int, sampled: Sequence[Trajectory]) -> tuple[str, ...]:
    """Return the ids of the attempts that show it most, the first of equal ones first."""
    if detector.shows is None:
        return ()
    ranked = [
        (shown, f"{step}/{group[0].task_id}/{number}")
        for group in groups_by_task(sampled)
        for number, shown in enumerate(detector.shows(group))
    ]
    ranked.sort(key=lambda pair: -pair[0])
    return tuple(name for shown, name in ranked[:_SHOWN_ATTEMPTS] if shown > 0)

"""Progress of counted work, and an estimate of the time left."""

from __future__ import annotations

from collections.abc import Callable


class Pace:
    """Number of finished units of work, and an estimate of the time left."""

    def __init__(self, total: int, clock: Callable[[], float]) -> None:
        self.total = total
        self.done = 0
        self._clock = clock
        self._first: tuple[float, int] | None = None

    def advance(self, count: int) -> None:
        """Count units; the first call sets the start, because a resumed run begins with many."""
        self.done += count
        if self._first is None:
            self._first = (self._clock(), self.done)

    def seconds_left(self) -> float | None:
        """Seconds left; None before there is an estimate."""
        if self._first is None or self.done == self._first[1] or not self.total:
            return None
        began_s, done_before = self._first
        seconds_each = (self._clock() - began_s) / (self.done - done_before)
        return seconds_each * max(0, self.total - self.done)

    def left(self) -> str:
        """The time left, like 12:40, 3h05 or 2d04h; "-" before there is an estimate."""
        left_s = self.seconds_left()
        if left_s is None:
            return "-"
        minutes, seconds = divmod(round(left_s), 60)
        hours, minutes_of_hour = divmod(minutes, 60)
        if minutes < 100:
            return f"{minutes}:{seconds:02}"
        days, hours_of_day = divmod(hours, 24)
        return f"{days}d{hours_of_day:02}h" if days else f"{hours}h{minutes_of_hour:02}"

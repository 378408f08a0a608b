"""How much of a counted piece of work is done, and how long the rest takes."""

from __future__ import annotations

from collections.abc import Callable


class Pace:
    """Work done so far, and an estimate of the time left."""

    def __init__(self, total: int, clock: Callable[[], float]) -> None:
        self.total = total
        self.done = 0
        self._clock = clock
        self._first: tuple[float, int] | None = None

    def advance(self, count: int) -> None:
        """Count; the first call only sets the start, as a resumed run begins with many at once."""
        self.done += count
        if self._first is None:
            self._first = (self._clock(), self.done)

    def seconds_left(self) -> float | None:
        """The time left; None where nothing is known yet."""
        if self._first is None or self.done == self._first[1] or not self.total:
            return None
        began_s, done_before = self._first
        seconds_each = (self._clock() - began_s) / (self.done - done_before)
        return seconds_each * max(0, self.total - self.done)

    def left(self) -> str:
        """The time left, as 12:40, 3h05 or 2d04h; "-" where nothing is known yet."""
        left_s = self.seconds_left()
        if left_s is None:
            return "-"
        minutes, seconds = divmod(round(left_s), 60)
        hours, minutes_of_hour = divmod(minutes, 60)
        if minutes < 100:
            return f"{minutes}:{seconds:02}"
        days, hours_of_day = divmod(hours, 24)
        return f"{days}d{hours_of_day:02}h" if days else f"{hours}h{minutes_of_hour:02}"

"""Whether a session's processes stand still between its calls, once they were told to stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sandboxd import kernel

_STOPPED, _WAITING = "Tt", "D"
_MOST_LOOKS = 50
"""That may find a thread moving: a second of one that runs, on a busy machine, since looks then
follow each other closely; half a minute of one that waits for a disk."""


def threads_below(pid: int) -> dict[tuple[int, int], kernel.Thread]:
    """(process, thread) -> thread, for all live descendants."""
    return {
        (process, number): thread
        for process in kernel.pids_below(pid)
        for number, thread in kernel.threads_of(process).items()
    }


class Standstill:
    """What looks at threads found since their processes were told to stop.

    A thread that was seen stopped must not run again, as by a timer that sends SIGCONT. Such a
    timer also takes back a stop that has not reached a thread in the kernel: one that waits there
    stands still only while it has not run since the look before. So a program whose child of vfork
    is stopped may wait for ever, and one that never stops may not.

    Attributes:
        moving: (process, thread) of those that did not stand still at the last look.
        is_broken: whether a look found what must end the session.
    """

    def __init__(self) -> None:
        self._seen: Mapping[tuple[int, int], kernel.Thread] = {}
        self._looks = Counter[tuple[int, int]]()
        self.moving: list[tuple[int, int]] = []
        self.is_broken = False

    @property
    def was_seen(self) -> bool:
        """Whether there was a look."""
        return bool(self._seen)

    @property
    def is_running(self) -> bool:
        """Whether one of those that move does not wait in the kernel."""
        return any(self._seen[key].state != _WAITING for key in self.moving)

    def look(self, now: Mapping[tuple[int, int], kernel.Thread]) -> None:
        """Compare threads with what the look before found.

        Args:
            now: as `threads_below` finds them.
        """
        before, was_complete = self._seen, self.was_seen and not self.moving
        stopped = {key: was for key, was in before.items() if was.state in _STOPPED}
        self._seen = now
        self.moving = [key for key in now if not _stands_still(before.get(key), now[key])]
        self._looks.update(self.moving)
        ran = any(now.get(key, was) != was for key, was in stopped.items())
        came_or_left = now.keys() - before.keys() or stopped.keys() - now.keys()
        never_stops = any(self._looks[key] > _MOST_LOOKS for key in self.moving)
        if ran or never_stops or (came_or_left and was_complete):
            self.is_broken = True


def _stands_still(before: kernel.Thread | None, now: kernel.Thread) -> bool:
    return now.state in _STOPPED or (now.state == _WAITING and now == before)

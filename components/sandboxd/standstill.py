"""Checks that a session's stopped processes do not run between its calls."""

from __future__ import annotations

from collections.abc import Mapping

from sandboxd import kernel
from sandboxd.kernel import Activity

_STOPPED, _WAITING, _ENDED = "TDZ"
_MOST_LOOKS = 50
"""Most looks that may find something moving: a second of frequent looks, or half a minute of those
at threads that wait in the kernel, for a disk for example."""

Key = tuple[int, int]
"""Ids of a process and its thread; thread 0 is the whole process, ended threads included."""


def activities_below(pid: int) -> dict[Key, Activity]:
    """Activities of all descendants and their threads."""
    return {
        (process, thread): activity
        for process in kernel.pids_below(pid)
        for thread, activity in kernel.activity(process).items()
    }


class Standstill:
    """Judges a session by looks at its threads after SIGSTOP.

    A thread that did not run between two looks stands still. A stopped thread must not run again;
    a timer that sends SIGCONT could make it. Such a timer also cancels a stop that has not reached
    a thread in the kernel yet, so a thread that waits there, also one whose vfork child is stopped,
    stands still only as long as it has not run. A thread that ran may be about to stop and is
    stopped again, but only for a limited number of looks, because a program could continue in
    children without end.

    Attributes:
        moving: threads that did not stand still at the last look.
        is_broken: whether the session must be ended.
    """

    def __init__(self) -> None:
        self._seen: Mapping[Key, Activity] = {}
        self._looks = 0
        self.moving: list[Key] = []
        self.is_broken = False

    @property
    def was_seen(self) -> bool:
        """Whether a look found any process."""
        return bool(self._seen)

    @property
    def may_take_long(self) -> bool:
        """Whether all moving threads wait in the kernel."""
        return all(self._seen[key].state == _WAITING for key in self.moving)

    def look(self, now: Mapping[Key, Activity]) -> None:
        """Compare the activities with those of the look before.

        Args:
            now: result of `activities_below`.
        """
        before, moved, stood_still = self._seen, self.moving, self.was_seen and not self.moving
        stopped = {
            key: was for key, was in before.items() if was.state == _STOPPED and key not in moved
        }
        self._seen = now
        self.moving = [key for key in now if not _stands_still(before.get(key), now[key])]
        self._looks += bool(self.moving)
        left = {key for key in stopped if key not in now or now[key].state == _ENDED}
        ran = any(now[key] != was for key, was in stopped.items() if key not in left)
        came = now.keys() - before.keys()
        if ran or (stood_still and (came or left)) or self._looks > _MOST_LOOKS:
            self.is_broken = True


def _stands_still(before: Activity | None, now: Activity) -> bool:
    return now.state in (_STOPPED, _WAITING, _ENDED) and now == before

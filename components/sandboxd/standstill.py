"""Whether a session's processes stand still between its calls, once they were told to stop."""

from __future__ import annotations

from collections.abc import Mapping

from sandboxd import kernel
from sandboxd.kernel import Activity

_STOPPED, _WAITING, _ENDED = "TDZ"
_MOST_LOOKS = 50
"""May find something moving: a second of close looks, on a busy machine, and half a minute of those
at what waits in the kernel, for a disk say."""

Key = tuple[int, int]
"""A process and its thread; thread 0 stands for the whole process, with those that ended."""


def activities_below(pid: int) -> dict[Key, Activity]:
    """What all descendants and their threads do."""
    return {
        (process, thread): activity
        for process in kernel.pids_below(pid)
        for thread, activity in kernel.activity(process).items()
    }


class Standstill:
    """Judges looks at a session's threads since its processes were told to stop.

    What did not run between two looks stands still. What was stopped then must never run, as it
    would by a timer that sends SIGCONT. Such a timer also takes back a stop that has not reached a
    thread in the kernel: hence one that waits there stands still only while it has not run, as does
    a program whose child of vfork is stopped. What ran may still be about to stop, so it is stopped
    again, but not for more than a number of looks in all: a program could hand on to a child.

    Attributes:
        moving: what did not stand still at the last look.
        is_broken: whether the session must end.
    """

    def __init__(self) -> None:
        self._seen: Mapping[Key, Activity] = {}
        self._looks = 0
        self.moving: list[Key] = []
        self.is_broken = False

    @property
    def was_seen(self) -> bool:
        """Whether there was a look."""
        return bool(self._seen)

    @property
    def may_take_long(self) -> bool:
        """Whether nothing moves but what waits in the kernel."""
        return all(self._seen[key].state == _WAITING for key in self.moving)

    def look(self, now: Mapping[Key, Activity]) -> None:
        """Compare what is done with what was done at the look before.

        Args:
            now: as `activities_below` finds it.
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

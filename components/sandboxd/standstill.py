"""Whether a session's processes stand still between its calls, once they were told to stop."""

from __future__ import annotations

import time
from collections.abc import Mapping

from sandboxd import kernel

_STOPPED, _ENDED, _WAITING = "Tt", "ZX", "D"
_STOPPED_WITHIN_S = 1.0
"""In which the last process stops, on a busy machine."""
_WAITED_WITHIN_S = 30.0
"""In which one that waits in the kernel, for a disk say, comes back from there and stops."""


def states_below(pid: int) -> dict[int, tuple[str, int]]:
    """Pid -> `kernel.stillness`, of all live descendants."""
    found = {each: kernel.stillness(each) for each in kernel.pids_below(pid)}
    return {each: state for each, state in found.items() if state is not None}


class Standstill:
    """What was seen of processes since they were told to stop, and what that says of them.

    A process that stopped can have been left something that wakes it, a timer that sends SIGCONT.
    Such a timer also takes back a stop that has not reached a process that waits in the kernel. So
    one that waits counts as still only while it has not run since the look before: a program whose
    child of vfork is stopped waits for ever.
    """

    def __init__(self) -> None:
        self._since_s = time.monotonic()
        self._seen: Mapping[int, tuple[str, int]] = {}
        self.was_seen = self.is_complete = False
        """Whether anybody looked; whether all processes stood still then."""

    def is_broken_by(self, now: Mapping[int, tuple[str, int]]) -> bool:
        """Look again: whether one ran, came or left that must not, or has not stopped in time.

        Args:
            now: as `states_below` finds it.
        """
        before, self._seen, self.was_seen = self._seen, now, True
        for_s = time.monotonic() - self._since_s
        came = now.keys() - before.keys() if self.is_complete else ()
        moved = [pid for pid, was in before.items() if was[0] in _STOPPED and now.get(pid) != was]
        unsettled = {pid for pid in now if not _is_settled(before.get(pid), now[pid])}
        active = [pid for pid in unsettled if now[pid][0] != _WAITING]
        late = [pid for pid in active if pid not in before or before[pid][0] != _WAITING]
        self.is_complete = not unsettled
        return bool(
            came
            or moved
            or (late and for_s > _STOPPED_WITHIN_S)
            or (unsettled and for_s > _WAITED_WITHIN_S)
        )


def _is_settled(before: tuple[str, int] | None, now: tuple[str, int]) -> bool:
    state, _ = now
    return state in _STOPPED + _ENDED or (state == _WAITING and before == now)

"""Supervises one run: limits it, waits for it, and leaves nothing of it behind.

Whatever a job forks stays below its runner, because orphans come to the nearest subreaper, however
often they forked and whichever session they started. So a runner without children has ended it all.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping
from resource import struct_rusage
from typing import Any

from sandboxd import job, kernel
from sandboxd.processes import descendants, snapshot

_ROUNDS = 40
"""Of killing; a fork bomb that starts a session in every process can win some of them."""
_ROUND_PAUSE_S = 0.002
_WAITED_FOR = frozenset({signal.SIGCHLD, signal.SIGTERM})


def supervise(orders: Mapping[str, Any], descriptors: dict[str, int]) -> None:
    """Run a job to its end, or until SIGTERM; report this process first, and the end last."""
    kernel.adopt_orphans()
    kernel.die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    os.setsid()
    report = descriptors.pop("report")
    _say(report, {"runner": os.getpid()})
    try:
        first = job.start(orders, descriptors)
    except job.CannotRunError as error:
        os.write(descriptors["stderr"], str(error).encode())
        _say(report, _ending(error.status << 8, None))
        return
    except OSError as error:
        os.write(report, refusal(error))
        return
    for descriptor in descriptors.values():
        os.close(descriptor)
    ended = _wait(first)
    killed = _end_descendants(first if ended is None else None)
    status, usage = ended or killed or (None, None)
    _say(report, _ending(status, usage))


def refusal(error: OSError) -> bytes:
    """The report of a run that could not start, for want of processes or memory."""
    return json.dumps({"refused": f"the sandbox cannot fork: {error.strerror}"}).encode() + b"\n"


def _ending(status: int | None, usage: struct_rusage | None) -> dict[str, object]:
    return {
        "wait_status": status,
        "cpu_s": usage.ru_utime + usage.ru_stime if usage else 0.0,
        "max_rss_bytes": usage.ru_maxrss * 1024 if usage else 0,
        "clean": not _has_children(),
    }


def _say(report: int, what: Mapping[str, object]) -> None:
    os.write(report, json.dumps(what).encode() + b"\n")


def _wait(first: int) -> tuple[int, struct_rusage] | None:
    """Status and use of the job once it ended by itself; none if sandboxd wants it ended."""
    while True:
        ended = _reap(first)
        if ended is not None:
            return ended
        if signal.sigwait(_WAITED_FOR) == signal.SIGTERM:
            return None


def _reap(first: int | None) -> tuple[int, struct_rusage] | None:
    """Collect children that ended; the job's status if it is among them."""
    found = None
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == first:
            found = status, usage


def _end_descendants(first: int | None) -> tuple[int, struct_rusage] | None:
    found = None
    for _ in range(_ROUNDS):
        found = _reap(first) or found
        if not _has_children():
            break
        _kill_all()
        time.sleep(_ROUND_PAUSE_S)
    return found


def _kill_all() -> None:
    """Signal whole groups: the kernel does it at once, so no member can fork away from it."""
    for process in descendants(os.getpid(), snapshot()):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(os.getpgid(process.pid), signal.SIGKILL)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True

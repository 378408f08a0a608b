"""The trial's own processes, as this machine's /proc shows them: found, signalled, counted."""

import contextlib
import os
import signal
from pathlib import Path

ROLES = ("bubblewrap", "sandboxd", "spawner", "runner", "job")
"""By depth below the process that made them."""


def children(pid):
    """Pids of a process's children, of all its threads."""
    found = set()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found.update(map(int, (task / "children").read_text().split()))
    return found


def below(pid):
    """Pid -> depth, of all descendants."""
    found, waiting = {}, [(pid, 0)]
    while waiting:
        parent, depth = waiting.pop()
        for child in children(parent) - found.keys():
            found[child] = depth
            waiting.append((child, depth + 1))
    return found


def first_processes():
    """Bubblewraps of this process; sandboxes that are being created as well."""
    return [pid for pid in children(os.getpid()) if _name(pid) in ("bwrap", "sh")]


def strike(pid, parent, number):
    """Send a signal to a process if it is still that child of that parent."""
    try:
        held = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if pid not in children(parent):
            return False
        signal.pidfd_send_signal(held, number)
    except OSError:
        return False
    finally:
        os.close(held)
    return True


def living():
    """Descendants of this process that have not ended, with their command lines; reaps orphans."""
    found = {}
    for pid in below(os.getpid()):
        if _state(pid) == "Z":
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        elif _state(pid) is not None:
            found[pid] = f"{_name(pid)} {_command(pid)[:100]}"
    return found


def resident_bytes():
    """Memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def num_descriptors():
    """Open descriptors of this process, without the one that lists them."""
    return len(os.listdir("/proc/self/fd")) - 1


def descriptors():
    """What each descriptor of this process is."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def _name(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _command(pid):
    try:
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode("utf-8", "replace")
        )
    except OSError:
        return ""


def _state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None

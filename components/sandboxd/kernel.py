"""Linux calls that Python's os module lacks, and the sandbox's processes in /proc."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sandboxd.syscalls import ALLOWED

_libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2

_F_ADD_SEALS = 1033
_ALL_SEALS = 0x1 | 0x2 | 0x4 | 0x8
"""F_SEAL_SEAL, SHRINK, GROW, WRITE (include/uapi/linux/fcntl.h)."""
_SEAL_TRIES = 8
"""Attempts to seal a file: sealing fails with EBUSY if a page is in use for over 0.15 s, by memory
reclaim for example."""

_NO_PROJECT = b"4294967294 4294967294 1"
"""Map of only the last project id, which no file system uses."""


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send this process a signal when its parent's thread ends."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def hide_memory() -> None:
    """Deny other processes of the same user access to /proc/PID/{mem,environ,fd} and ptrace."""
    _prctl(_PR_SET_DUMPABLE, 0)


def show_memory() -> None:
    """Undo `hide_memory`, because programs open their own /proc/self/fd."""
    _prctl(_PR_SET_DUMPABLE, 1)


def adopt_orphans() -> None:
    """Make this process the subreaper, which becomes the parent of orphaned descendants."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def settle_project_ids() -> None:
    """Write the user namespace's projid_map, because otherwise a job could.

    It can be written only once. Call this before `hide_memory`. Does nothing in the host's
    namespace, whose map exists.
    """
    with contextlib.suppress(OSError), open("/proc/self/projid_map", "wb", buffering=0) as file:
        file.write(_NO_PROJECT)


def renounce_rights() -> None:
    """Set no_new_privs, irrevocably: programs that this process starts cannot gain rights."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def filter_calls(program: bytes) -> None:
    """Install a seccomp filter in this process and all its children, irrevocably.

    Call `renounce_rights` before.
    """
    held = _Program(len(program) // 8, program)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(held))


def can_map(size: int) -> bool:
    """Whether this process can map `size` more bytes under its current limits."""
    try:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, OverflowError):
        return False
    return True


def sealed_file(name: str, content: bytes) -> int:
    """Descriptor of a sealed memfd, a file in memory that nobody can change, at its start."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, descriptor)
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        _seal(descriptor)
        undo.pop_all()
    return descriptor


def _seal(descriptor: int) -> None:
    for tries_left in reversed(range(_SEAL_TRIES)):
        try:
            fcntl.fcntl(descriptor, _F_ADD_SEALS, _ALL_SEALS)
        except OSError as error:
            if error.errno != errno.EBUSY or not tries_left:
                raise
        else:
            return


def _prctl(option: int, *arguments: int) -> None:
    words = [ctypes.c_ulong(word) for word in (*arguments, 0, 0, 0, 0)[:4]]
    if _libc.prctl(ctypes.c_int(option), *words) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


_PROC = Path("/proc")
_STATUS_FIELDS = (
    "PPid", "Threads", "RssAnon", "RssShmem", "VmData", "VmRSS", "VmPTE", "VmSize",
)  # fmt: skip
_AFTER_NAME = "\nState:"
"""Field after the name. gVisor does not escape names, which programs can choose, so only the text
from here on is trusted."""
_KIB = 1024
_UNKNOWN_STATE = "? (of threads that are not listed)"
_SWITCHES = ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
_TIMES = slice(11, 13)
"""Indices of utime and stime among the fields of /proc/PID/stat that follow the name."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_NUMBERS = ALLOWED.get(os.uname().machine, {})
_READING = [
    str(_NUMBERS[name]).encode() for name in ("read", "recvfrom", "recvmsg") if name in _NUMBERS
]
"""Numbers of the calls in /proc/PID/syscall."""
_TGKILL = _NUMBERS.get("tgkill", -1)
"""Number of the call, because older C libraries lack the function."""
_MAPPING_BYTES = 256
"""Kernel memory of a mapping, which the kernel counts for no process."""
_MANY_MAPPINGS, _MOST_MAPPINGS = 16_384, 65_530
"""Number of mappings that ordinary programs do not reach; the kernel's vm.max_map_count."""
_MOST_MAPS_BYTES = 8 * 2**20
"""Most bytes that are read of a run's lists of mappings, whose paths have unlimited length."""
_SHARED_WITHOUT_FILE = re.compile(
    rb"^\S+ \S{3}s .* (/dev/zero|/anon_hugepage|/memfd:.*|/SYSV\w*) \(deleted\)$"
)
_ALL_USERS = "4294967295"
"""Number of ids in the uid_map of the host's user namespace."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process and its memory.

    Attributes:
        held_bytes: resident memory without file pages: private, shared by fork, and shmem.
        table_bytes: page tables, which pages without memory of their own need, too.
        address_bytes: size of all mappings; 0 where the kernel limits these (gVisor).
        shown_by: thread whose entry in /proc shows the memory: the first, unless it has ended.
    """

    pid: int
    parent: int
    threads: int
    held_bytes: int
    table_bytes: int
    address_bytes: int = 0
    shown_by: int = 0


class Activity(NamedTuple):
    """State of a thread or process, and a counter that is constant while it does not run.

    Attributes:
        state: state in /proc: "T" if stopped (gVisor, too), "D" if it waits in the kernel, "Z" if
            it has ended, "?" if unknown.
        ran: for a thread its context switches (gVisor counts none), for a process the ticks of
            processor time of all threads that it had (gVisor samples them).
    """

    state: str
    ran: int = 0


def all_processes() -> dict[int, Process]:
    """Pid -> process, for all live processes of this pid namespace."""
    found = (_process(int(name)) for name in os.listdir(_PROC) if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def descendants(of: int, processes: Mapping[int, Process]) -> list[Process]:
    """All descendants of a process."""
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found, waiting = [], [of]
    while waiting:
        below = children.pop(waiting.pop(), [])
        found += below
        waiting += [process.pid for process in below]
    return found


def pids_below(of: int) -> set[int]:
    """Pids of all descendants; faster than `all_processes` where the kernel lists children."""
    found: set[int] = set()
    waiting = {of}
    while waiting:
        children = _children(waiting.pop())
        if children is None:
            return {process.pid for process in descendants(of, all_processes())}
        waiting |= children - found
        found |= children
    return found


def _children(pid: int) -> set[int] | None:
    """Pids of a process's children; None where the kernel does not list them (gVisor)."""
    found: set[int] = set()
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb", buffering=0) as file:
                found.update(map(int, file.read().split()))
    except FileNotFoundError:
        return None if os.path.exists(f"/proc/{pid}") else set()
    except ProcessLookupError:
        return found
    return found


def has_own_users() -> bool:
    """Whether RLIMIT_NPROC counts only this sandbox's processes (own user namespace)."""
    return _ALL_USERS not in (_PROC / "self/uid_map").read_text(encoding="ascii").split()


def cpu_seconds(pid: int) -> float:
    """Processor time of a process with all its threads; 0.0 if the process is gone."""
    return _cpu_ticks(pid) / _TICKS_PER_S


def _cpu_ticks(pid: int) -> int:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return sum(map(int, text.rpartition(")")[2].split()[_TIMES]))


def is_reading(pid: int, descriptor: int) -> bool | None:
    """Whether a process waits for data on this descriptor; None if the kernel does not show it."""
    try:
        with open(f"/proc/{pid}/syscall", "rb", buffering=0) as file:
            words = file.read().split()
    except OSError:
        return None
    return len(words) > 1 and words[0] in _READING and int(words[1], 16) == descriptor


def own_threads() -> list[int]:
    """Ids of this process's other threads, which `kill` accepts like pids."""
    ids = map(int, os.listdir(_PROC / "self" / "task"))
    return [number for number in ids if number != os.getpid()]


def stop_thread(pid: int, thread: int) -> None:
    """Send SIGSTOP to one thread, which stops its process; do nothing if the thread is gone.

    A signal to the process may go to a thread that waits in the kernel, and not reach the others.
    """
    _libc.syscall(_TGKILL, pid, thread, int(signal.SIGSTOP))


def activity(pid: int) -> dict[int, Activity]:
    """Activity of a process (key 0) and of its live threads (keys are their ids).

    A zombie has no threads. gVisor lists no threads if the first has ended; the state is then
    unknown, as is that of a process that is gone.
    """
    shown = _shown_by(pid)
    if shown is None:
        return {0: Activity("?" if _status_lines(str(pid)) is None else "Z")}
    first, named = shown
    statuses = {first: named}
    if _number(named.get("Threads", "1")) > 1:
        with contextlib.suppress(OSError):
            statuses |= _live_threads(pid)
    threads = {
        thread: Activity(
            status["State"].split()[0],
            sum(_number(status.get(name, "0")) for name in _SWITCHES),
        )
        for thread, status in statuses.items()
    }
    state = next((each.state for each in threads.values() if each.state != "T"), "T")
    return {0: Activity(state, _cpu_ticks(pid)), **threads}


def unseen_bytes(processes: Iterable[Process], most_bytes: int) -> tuple[int, int]:
    """Memory that is not in any process's resident memory: mapping entries, and shared mappings.

    Pages of a shared mapping without a file stay although nobody has them mapped any more, so the
    mapping counts with its full size, once. A process that hides its mappings, or has too many or
    too long ones to read, counts with its whole address space.

    Args:
        processes: processes of one run.
        most_bytes: sum at which the search stops.

    Returns:
        bytes of the mappings' entries in the kernel, bytes of shared memory.
    """
    entries, hidden, shared, left = 0, 0, dict[str, int](), _MOST_MAPS_BYTES
    for process in processes:
        found = _mappings(process.shown_by, left)
        if found is None:
            hidden += process.address_bytes
        else:
            entries += found[0] * _MAPPING_BYTES
            shared |= found[1]
            left -= found[2]
        if entries + hidden + sum(shared.values()) > most_bytes:
            break
    return entries, hidden + sum(shared.values())


def _mappings(thread: int, most_bytes: int) -> tuple[int, dict[str, int], int] | None:
    """Number of mappings; inode -> size of shared ones without a file; length of the list.

    None if the process hides the list, or the list is longer than `most_bytes`.
    """
    number, length, shared = 0, 0, dict[str, int]()
    try:
        with (_PROC / str(thread) / "maps").open("rb") as lines:
            for line in lines:
                number, length = number + 1, length + len(line)
                if length > most_bytes:
                    return None
                if number > _MANY_MAPPINGS:  # assume the maximum instead of reading on
                    return _MOST_MAPPINGS, shared, length
                if _SHARED_WITHOUT_FILE.search(line):
                    addresses, _, _, _, inode, *_ = line.decode(errors="replace").split()
                    first, _, end = addresses.partition("-")
                    shared[inode] = shared.get(inode, 0) + int(end, 16) - int(first, 16)
    except PermissionError:
        return None
    except OSError:
        pass  # the process has ended
    return number, shared, length


def number_of_locks(most: int) -> int:
    """Number of file locks of this pid namespace, at most `most`; 0 if the kernel lists none."""
    try:
        with (_PROC / "locks").open(encoding="ascii", errors="replace") as lines:
            own = (line for line in lines if "OFDLCK" not in line)  # those may be of any sandbox
            return sum(1 for _ in zip(own, range(most), strict=False))
    except OSError:
        return 0


def own_bytes(field: str) -> int:
    """A size in bytes from this process's status; RLIMIT_DATA counts VmData, RLIMIT_AS VmSize."""
    return _KIB * _number((_status_lines("self") or {}).get(field, "0"))


def proportional_bytes(process: Process) -> tuple[int, int]:
    """Proportional resident memory without files: a page shared by three processes counts a third.

    Slower than `held_bytes`, which is returned if the process hides its memory.

    Returns:
        bytes of private memory, bytes of shared memory.
    """
    try:
        text = (_PROC / str(process.shown_by) / "smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return process.held_bytes, 0
    shares = dict(line.split(":", 1) for line in text.splitlines()[1:] if ":" in line)
    if "Pss_Anon" not in shares:
        return process.held_bytes, 0
    private, shared = (int(shares[name].split()[0]) for name in ("Pss_Anon", "Pss_Shmem"))
    return _KIB * private, _KIB * shared


def _process(pid: int) -> Process | None:
    shown = _shown_by(pid)
    if shown is None:
        return None
    thread, named = shown
    values = {name: _number(named.get(name, "0")) for name in _STATUS_FIELDS}
    held = values["RssAnon"] + values["RssShmem"]
    if "RssAnon" not in named:  # gVisor does not separate anonymous memory from files
        held = min(values["VmRSS"], values["VmData"])
    return Process(
        pid=pid,
        parent=values["PPid"],
        threads=values["Threads"],
        held_bytes=_KIB * held,
        table_bytes=_KIB * values["VmPTE"],
        address_bytes=_KIB * values["VmSize"] if "RssAnon" in named else 0,
        shown_by=thread,
    )


def _shown_by(pid: int) -> tuple[int, dict[str, str]] | None:
    """A live thread of a process whose entry in /proc shows the process, and its status.

    A process whose first thread has ended looks like a zombie without memory while other threads
    run, so one of those is used. gVisor then lists no threads: the process counts, but only the
    pod's limit counts its memory.
    """
    named = _status_lines(str(pid))
    if named is None or not _has_ended(named):
        return None if named is None else (pid, named)
    if _number(named.get("Threads", "1")) < 2:
        return None
    try:
        return next(_live_threads(pid), None)
    except OSError:
        return pid, named | {"State": _UNKNOWN_STATE}


def _live_threads(pid: int) -> Iterator[tuple[int, dict[str, str]]]:
    """Ids and statuses of a process's live threads.

    Raises:
        OSError: the kernel does not list them.
    """
    for name in os.listdir(_PROC / str(pid) / "task"):
        status = _status_lines(f"{pid}/task/{name}")
        if status is not None and not _has_ended(status):
            yield int(name), status


def _has_ended(named: Mapping[str, str]) -> bool:
    return named["State"].split()[0] in "ZX"


def _status_lines(process: str) -> dict[str, str] | None:
    try:
        text = (_PROC / process / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    _, after_name, text = text.rpartition(_AFTER_NAME)
    if not after_name:
        return None
    lines = f"State:{text}".splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _number(text: str) -> int:
    return int(text.split()[0])

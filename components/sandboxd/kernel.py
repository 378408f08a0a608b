"""The few calls of Linux that Python's os module lacks."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os

_libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2

_F_ADD_SEALS = 1033
_ALL_SEALS = 0x1 | 0x2 | 0x4 | 0x8
"""Seal, shrink, grow, write (include/uapi/linux/fcntl.h)."""
_SEAL_TRIES = 8
"""The kernel waits 0.15 s for whoever looks at a page just then, such as its own reclaim, and gives
up; it is asked again."""

_NO_PROJECT = b"4294967294 4294967294 1"
"""Maps the last number to itself, and so none that a file system uses."""


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def die_with_parent(signal_number: int) -> None:
    """Receive this signal when the parent's thread ends."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def hide_memory() -> None:
    """Keep /proc/self/{mem,environ,fd} and ptrace from processes of the same user."""
    _prctl(_PR_SET_DUMPABLE, 0)


def show_memory() -> None:
    """Own /proc/self again: programs open their own /proc/self/fd."""
    _prctl(_PR_SET_DUMPABLE, 1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def settle_project_ids() -> None:
    """Write the one map of the user namespace that any process in it could, for it is written once.

    Call it before `hide_memory`. Where there is no namespace but the machine's it is settled.
    """
    with contextlib.suppress(OSError), open("/proc/self/projid_map", "wb", buffering=0) as file:
        file.write(_NO_PROJECT)


def filter_calls(program: bytes) -> None:
    """Install a seccomp filter for good, in this process and all that it starts."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    held = _Program(len(program) // 8, program)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(held))


def can_map(size: int) -> bool:
    """Whether this process may have so much memory more, as far as its limits are kept here."""
    try:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, OverflowError):
        return False
    return True


def sealed_file(name: str, content: bytes) -> int:
    """A file in memory that nobody can change, read from its start."""
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

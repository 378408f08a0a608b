"""Landlock limits the paths that a job may write, and separates it from other runs' processes.

Every run has its own Landlock domain. The kernel then refuses what seccomp cannot see: writing to
paths outside the job's folders (above all below /proc, such as its oom_score_adj), and reading,
tracing or signalling processes of other runs. Without Landlock (gVisor, kernels before 5.13;
signals need 6.12) the runs of one sandbox are not separated.

Values are from include/uapi/linux/landlock.h of Linux 6.12; no library, so that images need none.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

_libc = ctypes.CDLL(None, use_errno=True)

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1

_WRITE_FILE, _TRUNCATE, _REFER = 1 << 1, 1 << 14, 1 << 13
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
"""REMOVE_DIR, REMOVE_FILE, MAKE_{CHAR,DIR,REG,SOCK,FIFO,BLOCK,SYM}."""
_SCOPE_SIGNAL = 1 << 1
_SCOPES_SINCE = 6
_DEVICES = "/dev"


def version() -> int:
    """Version of the kernel's Landlock; 0 without one."""
    found = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_ASK_VERSION))
    return max(found, 0)


def separates_runs() -> bool:
    """Whether domains keep runs from tracing and from signalling each other."""
    return version() >= _SCOPES_SINCE


def confine(writable: Iterable[str], since: int) -> None:
    """Put this process and its children into a new domain, irrevocably.

    Requires no_new_privs.

    Args:
        writable: folders in which files may be written; devices may be written, too.
        since: result of `version`; 0 does nothing.

    Raises:
        OSError: the kernel refused.
    """
    if not since:
        return
    writing = _WRITE_FILE | _REMOVE_AND_MAKE  # older kernels refuse rights of later versions
    writing |= _REFER if since >= 2 else 0
    writing |= _TRUNCATE if since >= 3 else 0
    words = [writing, 0, _SCOPE_SIGNAL] if since >= _SCOPES_SINCE else [writing]
    attributes = struct.pack(f"={len(words)}Q", *words)
    ruleset = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))
    try:
        for folder in writable:
            _allow(ruleset, folder, writing)
        _allow(ruleset, _DEVICES, _WRITE_FILE)
        _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, folder: str, what: int) -> None:
    below = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", what, below)
        _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint(0))
    finally:
        os.close(below)


def _call(number: int, *arguments: object) -> int:
    result = _libc.syscall(number, *arguments)
    if result < 0:
        cause = ctypes.get_errno()
        raise OSError(cause, f"Landlock: {os.strerror(cause)}")
    return result

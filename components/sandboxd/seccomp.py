"""The seccomp filter of jobs, an allow-list as a classic BPF program.

It is written without a library, so that images need none. Calls outside the list (`syscalls`) fail
as unknown (ENOSYS), for which programs have a fallback. Some calls are allowed by their arguments:
a job cannot create namespaces, cannot signal sandboxd's processes, can open only ordinary local
sockets (and internet sockets where allowed), and cannot set options with which a socket or
descriptor signals another process, holds uncounted memory or blocks the server.
"""

from __future__ import annotations

import errno
import functools
import struct
from collections.abc import Iterable, Mapping, Sequence

from sandboxd.syscalls import ALLOWED, SILENT

AUDIT_ARCHITECTURES: Mapping[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 6
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_KILL_PROCESS = 0x80000000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
"""Offsets in struct seccomp_data; an argument is 8 bytes, its low half first."""
_X32 = 0x40000000
"""Bit in the call numbers of the x32 ABI, for which this filter has no table."""

_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}."""
_AF_UNIX = 1
_INTERNET_FAMILIES = (2, 10)
"""AF_INET, AF_INET6; not AF_VSOCK, which network namespaces do not confine."""
_TYPES = (1, 2, 5)
"""SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET; not SOCK_RAW."""
_TYPE_BITS = 0xF
_PROTOCOLS = (0, 6, 17)
"""The family's default, TCP, UDP; not SCTP, MPTCP and others, whose kernel modules a job could
load."""
_FCNTL_REFUSED = (8, 10, 15, 37, 38, 1024, 1026, 1031, 1036, 1038)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX and F_NOTIFY make the kernel signal a chosen process; F_OFD_SETLK
and F_OFD_SETLKW make locks that /proc/locks shows to all sandboxes of the machine; F_SETLEASE
blocks others who open the file; F_SETPIPE_SZ holds up to 1 MiB of uncounted memory; F_SET_RW_HINT
and F_SET_FILE_RW_HINT leave a number on a file or device that others can read."""
_IOCTLS_REFUSED = (0x8901, 0x8902, 0x5412, 0x541C)
"""FIOSETOWN, SIOCSPGRP, TIOCSTI, TIOCLINUX."""
_PRCTLS_REFUSED = (22, 35, 62)
"""PR_SET_SECCOMP, PR_SET_MM, PR_SCHED_CORE."""
_PERSONALITIES = (0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Values that podman allows: default, 32-bit addresses, old version number, both, and a query."""
_ALL_PROCESSES = 2**32 - 1
"""kill(-1)."""

_SOL_SOCKET, _IPPROTO_IP, _IPPROTO_TCP, _IPPROTO_IPV6 = 1, 0, 6, 41
_SILENT_OPTIONS = {_SOL_SOCKET: (7, 8)}
"""SO_SNDBUF and SO_RCVBUF succeed without effect, so that each socket keeps the default size."""
_OPTIONS = {
    _SOL_SOCKET: (2, 4, 5, 6, 9, 10, 12, 13, 15, 16, 18, 20, 21, 29, 35, 37, 46),
    _IPPROTO_IP: (1, 2, 8, 10, 11, 12, 13, 14, 24, 32, 33, 34, 35, 36, 49),
    _IPPROTO_TCP: (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 17, 18, 23, 24, 25, 36),
    _IPPROTO_IPV6: (16, 17, 18, 19, 20, 21, 23, 25, 26, 29, 49, 66, 67),
}
"""Level -> options that may be set, such as reuse, keep-alive, linger, time-outs, hops, no delay;
none that sets a filter, a lower protocol, a key or pinned memory."""

Instruction = tuple[int, int, int, int]


def job_filter(machine: str, protected: Sequence[int], *, internet_sockets: bool = True) -> bytes:
    """The seccomp filter of a job.

    Args:
        machine: `os.uname().machine`.
        protected: pids and thread ids that jobs may not signal, nor the groups of these pids.
        internet_sockets: whether jobs may open internet sockets; without them jobs cannot send
            packets, not even to loopback, in any network.

    Raises:
        KeyError: there is no table of system calls for the machine.
    """
    numbers = ALLOWED[machine]
    instructions: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_EQUAL, 1, 0, AUDIT_ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_AT_LEAST, 0, 1, _X32),
        _refuse(errno.ENOSYS),
    ]
    for name, checked in _protecting(protected).items():
        instructions += _when(numbers[name], [*checked, _allow()])
    return _packed(instructions) + _same_for_all_jobs(machine, internet_sockets=internet_sockets)


@functools.cache
def _same_for_all_jobs(machine: str, *, internet_sockets: bool) -> bytes:
    """The rest of the filter, cached because building it takes a fifth of a run's start."""
    numbers = ALLOWED[machine]
    families = (_AF_UNIX, *(_INTERNET_FAMILIES if internet_sockets else ()))
    checks = _argument_checks(families)
    instructions: list[Instruction] = []
    for name, checked in checks.items():
        instructions += _when(numbers[name], [*checked, _allow()])
    for number in SILENT[machine].values():
        instructions += _when(number, [_succeed()])
    checked_names = {*checks, *_protecting(())}
    unchecked = (number for name, number in numbers.items() if name not in checked_names)
    for first, last in _ranges(unchecked):
        instructions += [(_JUMP_AT_LEAST, 0, 2, first), (_JUMP_AT_LEAST, 1, 0, last + 1), _allow()]
    return _packed([*instructions, _refuse(errno.ENOSYS)])


def _packed(instructions: Iterable[Instruction]) -> bytes:
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in instructions)


def _ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The numbers as the fewest (first, last) ranges, both ends included."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def _protecting(protected: Sequence[int]) -> Mapping[str, list[Instruction]]:
    """Checks of calls with a process as an argument."""
    groups = [_ALL_PROCESSES + 1 - pid for pid in protected]
    one = _refuse_values(0, protected)
    itself = _only_values(0, (0,), errno.EPERM)
    either = [*one, *_refuse_values(1, protected)]
    return {
        "kill": _refuse_values(0, [*protected, *groups, _ALL_PROCESSES]),
        "tkill": one,
        "tgkill": either,
        "rt_sigqueueinfo": one,
        "rt_tgsigqueueinfo": either,
        "pidfd_open": one,
        # only for the caller itself: Landlock does not protect other runs and sandboxd from these
        "prlimit64": itself,
        "sched_setaffinity": itself,
        "sched_setparam": itself,
        "sched_setscheduler": itself,
        "sched_setattr": itself,
        "setpriority": [
            *_only_values(0, (0,), errno.EPERM),  # PRIO_PROCESS; not groups or users
            *_only_values(1, (0,), errno.EPERM),
        ],
    }


def _argument_checks(families: Sequence[int]) -> Mapping[str, list[Instruction]]:
    return {
        "clone": [
            (_LOAD, 0, 0, _ARGUMENTS_AT),
            (_JUMP_ANY_BIT, 0, 1, _NEW_NAMESPACES),
            _refuse(errno.EPERM),
        ],
        "socket": _socket_checks(families),
        "socketpair": _socket_checks((_AF_UNIX,)),
        "setsockopt": _option_checks(),
        "fcntl": _refuse_values(1, _FCNTL_REFUSED),
        "ioctl": _refuse_values(1, _IOCTLS_REFUSED),
        "prctl": _refuse_values(0, _PRCTLS_REFUSED),
        "personality": _only_values(0, _PERSONALITIES, errno.EPERM),
    }


def _socket_checks(families: Sequence[int]) -> list[Instruction]:
    kind: Instruction = (_AND, 0, 0, _TYPE_BITS)
    return [
        *_only_values(0, families, errno.EAFNOSUPPORT),
        *_only_values(1, _TYPES, errno.EPROTONOSUPPORT, masked=kind),
        *_only_values(2, _PROTOCOLS, errno.EPROTONOSUPPORT),
    ]


def _option_checks() -> list[Instruction]:
    instructions: list[Instruction] = []
    for level, options in _OPTIONS.items():
        silent = _SILENT_OPTIONS.get(level, ())
        within: list[Instruction] = [(_LOAD, 0, 0, _ARGUMENTS_AT + 16)]
        for option in silent:
            within += _when(option, [_succeed()])
        for option in options:
            within += _when(option, [_allow()])
        within.append(_refuse(errno.ENOPROTOOPT))
        instructions += [(_LOAD, 0, 0, _ARGUMENTS_AT + 8), *_when(level, within)]
    return [*instructions, _refuse(errno.ENOPROTOOPT)]


def _when(number: int, then: list[Instruction]) -> list[Instruction]:
    return [(_JUMP_EQUAL, 0, len(then), number), *then]


def _refuse_values(argument: int, values: Sequence[int]) -> list[Instruction]:
    checks: list[Instruction] = [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument)]
    for value in values:
        checks += _when(value, [_refuse(errno.EPERM)])
    return checks


def _only_values(
    argument: int, values: Sequence[int], number: int, *, masked: Instruction | None = None
) -> list[Instruction]:
    """Continue if the argument is one of the values, else refuse with this error number."""
    return [
        (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument),
        *([masked] if masked else []),
        *((_JUMP_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)),
        _refuse(number),
    ]


def _refuse(number: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _succeed() -> Instruction:
    return _refuse(0)


def _allow() -> Instruction:
    return (_RETURN, 0, 0, _ALLOW)

"""The seccomp filter of every job, as a classic BPF program written by hand.

It refuses what leads out of a sandbox (namespaces, mounts, kernel modules, tracing, eBPF, sockets
other than internet and local ones, foreign system call tables), what outlives a run or escapes its
memory limit (System V and POSIX queues, files without a name), and signals, limits and priorities
aimed at sandboxd's own processes, which share the jobs' user id.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping, Sequence

from sandboxd.syscalls import AUDIT_ARCHITECTURES, NUMBERS

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_KILL_PROCESS = 0x80000000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
"""Offsets in struct seccomp_data; an argument is 8 bytes, its low half first."""
_X32 = 0x40000000
"""Set in the numbers of x86_64's 32-bit table, which this filter does not know."""

REFUSED = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd"),
    *("process_madvise", "process_mrelease", "perf_event_open", "bpf", "userfaultfd"),
    *("mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen"),
    *("fsconfig", "fsmount", "fspick", "mount_setattr", "unshare", "setns"),
    *("keyctl", "add_key", "request_key", "init_module", "finit_module", "delete_module"),
    *("kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff", "acct", "quotactl"),
    *("quotactl_fd", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex"),
    *("sethostname", "setdomainname", "syslog", "vhangup", "lookup_dcookie"),
    *("name_to_handle_at", "open_by_handle_at", "fanotify_init", "mbind", "set_mempolicy"),
    *("migrate_pages", "move_pages", "ioprio_set", "shmget", "semget", "msgget", "mq_open"),
)
X86_ONLY = ("iopl", "ioperm")
UNKNOWN = (
    *("clone3", "memfd_create", "memfd_secret", "pidfd_send_signal"),
    *("io_uring_setup", "io_uring_enter", "io_uring_register"),
)
"""Said not to exist, because programs then fall back: clone3's flags lie in memory, out of BPF's
reach; files without a name escape the memory limit; a directory of /proc serves as a pidfd."""

_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}."""
_LOCAL_FAMILIES = (1,)
_INTERNET_FAMILIES = (2, 10)
"""AF_UNIX; AF_INET, AF_INET6. Above all no AF_VSOCK: no network namespace holds it."""
_OWNER_COMMANDS = (8, 10, 15)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX: they make the kernel signal a process of one's choice."""
_REFUSED_IOCTLS = (0x8901, 0x8902, 0x5412, 0x541C)
"""FIOSETOWN, SIOCSPGRP, TIOCSTI, TIOCLINUX."""
_ALL_PROCESSES = 2**32 - 1
"""kill(-1)."""

Instruction = tuple[int, int, int, int]


def job_filter(machine: str, protected: Sequence[int], *, internet_sockets: bool = True) -> bytes:
    """The filter for jobs.

    Args:
        machine: as `os.uname().machine` says it.
        protected: processes that jobs may neither signal nor slow down; each leads its own group.
        internet_sockets: whether jobs may open them; without, no packet is a job's, to loopback or
            anywhere, whatever network the sandbox is in.

    Raises:
        KeyError: no table of system calls for the machine.
    """
    numbers = NUMBERS[machine]
    instructions: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_EQUAL, 1, 0, AUDIT_ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_AT_LEAST, 0, 1, _X32),
        _refuse(errno.ENOSYS),
    ]
    for name in (*REFUSED, *(X86_ONLY if machine == "x86_64" else ())):
        instructions += _when(numbers[name], [_refuse(errno.EPERM)])
    for name in UNKNOWN:
        instructions += _when(numbers[name], [_refuse(errno.ENOSYS)])
    families = (*_LOCAL_FAMILIES, *(_INTERNET_FAMILIES if internet_sockets else ()))
    for name, checks in _argument_checks(protected, families).items():
        instructions += _when(numbers[name], [*checks, _allow()])
    instructions.append(_allow())
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in instructions)


def _argument_checks(
    protected: Sequence[int], families: Sequence[int]
) -> Mapping[str, list[Instruction]]:
    groups = [_ALL_PROCESSES + 1 - pid for pid in protected]
    one = _refuse_values(0, protected)
    either = [*one, *_refuse_values(1, protected)]
    socket = [
        (_LOAD, 0, 0, _ARGUMENTS_AT),
        *((_JUMP_EQUAL, len(families) - place, 0, family) for place, family in
          enumerate(families)),
        _refuse(errno.EAFNOSUPPORT),
    ]  # fmt: skip
    return {
        "clone": [
            (_LOAD, 0, 0, _ARGUMENTS_AT),
            (_JUMP_ANY_BIT, 0, 1, _NEW_NAMESPACES),
            _refuse(errno.EPERM),
        ],
        "socket": socket,
        "kill": _refuse_values(0, [*protected, *groups, _ALL_PROCESSES]),
        "tkill": one,
        "tgkill": either,
        "rt_sigqueueinfo": one,
        "rt_tgsigqueueinfo": either,
        "pidfd_open": one,
        "prlimit64": one,
        "sched_setaffinity": one,
        "sched_setparam": one,
        "sched_setscheduler": one,
        "sched_setattr": one,
        "setpriority": [
            (_LOAD, 0, 0, _ARGUMENTS_AT),
            (_JUMP_EQUAL, 1, 0, 0),  # PRIO_PROCESS; groups and users would reach sandboxd
            _refuse(errno.EPERM),
            *_refuse_values(1, protected),
        ],
        "fcntl": _refuse_values(1, _OWNER_COMMANDS),
        "ioctl": _refuse_values(1, _REFUSED_IOCTLS),
    }


def _when(number: int, then: list[Instruction]) -> list[Instruction]:
    return [(_JUMP_EQUAL, 0, len(then), number), *then]


def _refuse_values(argument: int, values: Sequence[int]) -> list[Instruction]:
    checks: list[Instruction] = [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument)]
    for value in values:
        checks += _when(value, [_refuse(errno.EPERM)])
    return checks


def _refuse(number: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _allow() -> Instruction:
    return (_RETURN, 0, 0, _ALLOW)

"""The seccomp filter of every job, as a classic BPF program, and system call numbers by machine.

By hand, so that images need no library for it. The filter refuses what leads out of a sandbox
(namespaces, mounts, kernel modules, tracing, eBPF, sockets other than internet and local ones,
foreign system call tables), what outlives a run or escapes its memory limit (System V and POSIX
queues, memfds), and signals, limits and priorities for sandboxd's own processes, which have the
jobs' user id.

Numbers from arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of Linux
6.12; calls from 424 on have the same number on all machines.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping, Sequence

_SAME = {
    "pidfd_send_signal": 424,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_open": 434,
    "clone3": 435,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "process_mrelease": 448,
}

_X86_64 = {
    **{"shmget": 29, "socket": 41, "clone": 56, "kill": 62, "semget": 64, "msgget": 68},
    **{"fcntl": 72, "ioctl": 16, "ptrace": 101, "syslog": 103, "setpriority": 141},
    **{"sched_setparam": 142, "sched_setscheduler": 144, "vhangup": 153, "pivot_root": 155},
    **{"adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165},
    **{"umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170},
    **{"setdomainname": 171, "iopl": 172, "ioperm": 173, "init_module": 175},
    **{"delete_module": 176, "quotactl": 179, "tkill": 200, "sched_setaffinity": 203},
    **{"lookup_dcookie": 212, "clock_settime": 227, "tgkill": 234, "mbind": 237},
    **{"set_mempolicy": 238, "mq_open": 240, "kexec_load": 246, "add_key": 248},
    **{"request_key": 249, "keyctl": 250, "ioprio_set": 251, "migrate_pages": 256},
    **{"unshare": 272, "move_pages": 279, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297},
    **{"perf_event_open": 298, "fanotify_init": 300, "prlimit64": 302},
    **{"name_to_handle_at": 303, "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308},
    **{"process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313},
    **{"sched_setattr": 314, "memfd_create": 319, "kexec_file_load": 320, "bpf": 321},
    **{"userfaultfd": 323},
    **_SAME,
}

_AARCH64 = {
    **{"lookup_dcookie": 18, "fcntl": 25, "ioctl": 29, "ioprio_set": 30, "umount2": 39},
    **{"mount": 40, "pivot_root": 41, "chroot": 51, "vhangup": 58, "quotactl": 60},
    **{"acct": 89, "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106},
    **{"clock_settime": 112, "syslog": 116, "ptrace": 117, "sched_setparam": 118},
    **{"sched_setscheduler": 119, "sched_setaffinity": 122, "kill": 129, "tkill": 130},
    **{"tgkill": 131, "rt_sigqueueinfo": 138, "setpriority": 140, "reboot": 142},
    **{"sethostname": 161, "setdomainname": 162, "settimeofday": 170, "adjtimex": 171},
    **{"mq_open": 180, "msgget": 186, "semget": 190, "shmget": 194, "socket": 198},
    **{"add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "swapon": 224},
    **{"swapoff": 225, "mbind": 235, "set_mempolicy": 237, "migrate_pages": 238},
    **{"move_pages": 239, "rt_tgsigqueueinfo": 240, "perf_event_open": 241, "prlimit64": 261},
    **{"fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265},
    **{"clock_adjtime": 266, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271},
    **{"kcmp": 272, "finit_module": 273, "sched_setattr": 274, "memfd_create": 279},
    **{"bpf": 280, "userfaultfd": 282, "kexec_file_load": 294},
    **_SAME,
}

AUDIT_ARCHITECTURES: Mapping[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NUMBERS: Mapping[str, Mapping[str, int]] = {"x86_64": _X86_64, "aarch64": _AARCH64}


_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_KILL_PROCESS = 0x80000000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
"""Offsets in struct seccomp_data; an argument is 8 bytes, its low half first."""
_X32 = 0x40000000
"""Set in the numbers of the x32 ABI, whose table this filter does not have."""

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
"""Answered with ENOSYS, so that programs fall back: BPF cannot read clone3's flags, which are in
memory; memfds escape the memory limit; a directory of /proc serves as a pidfd."""

_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}."""
_LOCAL_FAMILIES = (1,)
_INTERNET_FAMILIES = (2, 10)
"""AF_UNIX; AF_INET, AF_INET6. Never AF_VSOCK, which network namespaces do not confine."""
_OWNER_COMMANDS = (8, 10, 15)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX make the kernel send a signal to a chosen process."""
_REFUSED_IOCTLS = (0x8901, 0x8902, 0x5412, 0x541C)
"""FIOSETOWN, SIOCSPGRP, TIOCSTI, TIOCLINUX."""
_ALL_PROCESSES = 2**32 - 1
"""kill(-1)."""

Instruction = tuple[int, int, int, int]


def job_filter(machine: str, protected: Sequence[int], *, internet_sockets: bool = True) -> bytes:
    """The seccomp filter of a job.

    Args:
        machine: `os.uname().machine`.
        protected: pids that jobs may not signal or slow down; each leads its own process group.
        internet_sockets: whether jobs may open them; without them no job sends any packet, also to
            loopback, in whatever network the sandbox is.

    Raises:
        KeyError: there is no table of system calls for the machine.
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

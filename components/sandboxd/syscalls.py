"""Numbers of the system calls that jobs are refused, by machine.

Source: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of Linux 6.12;
calls numbered from 424 on are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping

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

"""The filter of jobs, run by an interpreter of classic BPF that shares nothing with its writer."""

import errno
import struct

import pytest

from sandboxd.seccomp import AUDIT_ARCHITECTURES, job_filter
from sandboxd.syscalls import ALLOWED as NUMBERS
from sandboxd.syscalls import SILENT

PROTECTED = (1, 7, 90)
ALLOWING = 0x7FFF0000
KILLED = 0x80000000


def _verdict(machine, number, arguments=(), architecture=None, **settings):
    """What the kernel would answer (include/uapi/linux/seccomp.h): an error number, or its text."""
    arguments = (*arguments, *[0] * (6 - len(arguments)))
    seen = struct.pack(
        "<iIQ6Q",
        number,
        architecture or AUDIT_ARCHITECTURES[machine],
        0xDEADBEEF,
        *(value % 2**64 for value in arguments),
    )
    program = list(struct.iter_unpack("<HBBI", job_filter(machine, PROTECTED, **settings)))
    at = accumulator = 0
    while True:
        code, if_true, if_false, k = program[at]
        at += 1
        if code == 0x06:
            break
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", seen, k)
        else:
            holds = {
                0x15: accumulator == k,
                0x35: accumulator >= k,
                0x45: bool(accumulator & k),
                0x54: None,
            }[code]
            if holds is None:
                accumulator &= k
                continue
            at += if_true if holds else if_false
    if k & 0xFFFF0000 == 0x00050000:
        return k & 0xFFFF
    return {ALLOWING: "allowed", KILLED: "killed"}[k]


@pytest.fixture(params=sorted(NUMBERS))
def machine(request):
    return request.param


ESCAPES = {
    "x86_64": {
        **{"ptrace": 101, "pivot_root": 155, "mount": 165, "umount2": 166, "keyctl": 250},
        **{
            "shmget": 29,
            "semget": 64,
            "msgget": 68,
            "mq_open": 240,
            "add_key": 248,
            "unshare": 272,
        },
        **{"vmsplice": 278, "perf_event_open": 298, "fanotify_init": 300, "inotify_init": 253},
        **{"inotify_init1": 294, "io_setup": 206, "name_to_handle_at": 303, "setns": 308},
        **{"process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "seccomp": 317},
        **{"memfd_create": 319, "bpf": 321, "userfaultfd": 323, "iopl": 172, "modify_ldt": 154},
        **{"init_module": 175, "kexec_load": 246, "swapon": 167, "reboot": 169, "chroot": 161},
    },
    "aarch64": {
        **{"ptrace": 117, "pivot_root": 41, "mount": 40, "umount2": 39, "keyctl": 219},
        **{
            "shmget": 194,
            "semget": 190,
            "msgget": 186,
            "mq_open": 180,
            "add_key": 217,
            "unshare": 97,
        },
        **{"vmsplice": 75, "perf_event_open": 241, "fanotify_init": 262, "inotify_init1": 26},
        **{"io_setup": 0, "name_to_handle_at": 264, "setns": 268, "process_vm_readv": 270},
        **{"process_vm_writev": 271, "kcmp": 272, "seccomp": 277, "memfd_create": 279, "bpf": 280},
        **{"userfaultfd": 282, "init_module": 105, "kexec_load": 104, "swapon": 224, "chroot": 51},
    },
}
NEWER = {"io_uring_setup": 425, "open_tree": 428, "fsopen": 430, "clone3": 435, "pidfd_getfd": 438}
"""The same number on every machine, as all calls from 424 on."""


def test_calls_that_lead_out_are_answered_as_unknown(machine):
    numbers = {**ESCAPES[machine], **NEWER}
    verdicts = {name: _verdict(machine, number) for name, number in numbers.items()}
    assert verdicts == dict.fromkeys(numbers, errno.ENOSYS)


def test_a_call_that_is_on_no_list_is_unknown(machine):
    listed = {*NUMBERS[machine].values(), *SILENT[machine].values()}
    verdicts = {_verdict(machine, number) for number in range(700) if number not in listed}
    assert verdicts == {errno.ENOSYS}


def test_calls_without_arguments_to_check_are_allowed(machine):
    checked = {"socket", "socketpair", "setsockopt"}
    verdicts = {
        name: _verdict(machine, number)
        for name, number in NUMBERS[machine].items()
        if name not in checked
    }
    assert verdicts == dict.fromkeys(verdicts, "allowed")


def test_waiting_for_all_disks_succeeds_without_doing_it(machine):
    assert {_verdict(machine, number) for number in SILENT[machine].values()} == {0}


def test_foreign_system_call_tables_are_refused(machine):
    for architecture in (0x40000003, 0xC000003E, 0xC00000B7, 0x40000028):
        if architecture != AUDIT_ARCHITECTURES[machine]:
            assert _verdict(machine, 0, architecture=architecture) == "killed"
    assert _verdict("x86_64", 0x40000000 + 1) == errno.ENOSYS


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        ((5, 9), "allowed"),
        ((0, 9), "allowed"),  # its own group
        ((-5, 9), "allowed"),
        ((1, 9), errno.EPERM),
        ((7, 0), errno.EPERM),
        ((-90, 15), errno.EPERM),
        ((-1, 9), errno.EPERM),
        ((2**32 - 1, 9), errno.EPERM),  # the kernel reads 32 bits
        ((2**32 + 7, 9), errno.EPERM),
    ],
)
def test_protected_processes_get_no_signal(machine, arguments, verdict):
    assert _verdict(machine, NUMBERS[machine]["kill"], arguments) == verdict


@pytest.mark.parametrize("name", ["tkill", "rt_sigqueueinfo", "pidfd_open"])
def test_calls_may_not_name_a_protected_process(machine, name):
    number = NUMBERS[machine][name]
    assert [_verdict(machine, number, (pid, 9)) for pid in (0, 5, 7)] == [
        "allowed",
        "allowed",
        errno.EPERM,
    ]


@pytest.mark.parametrize("name", ["tgkill", "rt_tgsigqueueinfo"])
def test_threads_and_groups_of_protected_processes_are_refused(machine, name):
    number = NUMBERS[machine][name]
    assert _verdict(machine, number, (5, 5)) == "allowed"
    assert _verdict(machine, number, (7, 5)) == errno.EPERM
    assert _verdict(machine, number, (5, 7)) == errno.EPERM


def test_forks_and_threads_are_allowed_and_new_namespaces_are_not(machine):
    number = NUMBERS[machine]["clone"]
    thread = 0x3D0F00
    assert _verdict(machine, number, (17,)) == "allowed"
    assert _verdict(machine, number, (thread,)) == "allowed"
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert _verdict(machine, number, (flag | 17,)) == errno.EPERM


@pytest.mark.parametrize(("internet_sockets", "families"), [(True, {1, 2, 10}), (False, {1})])
def test_other_socket_families_are_refused(machine, internet_sockets, families):
    verdicts = {
        family: _verdict(
            machine, NUMBERS[machine]["socket"], (family, 1), internet_sockets=internet_sockets
        )
        for family in range(64)
    }
    assert {family for family, verdict in verdicts.items() if verdict == "allowed"} == families
    assert set(verdicts.values()) == {"allowed", errno.EAFNOSUPPORT}


def test_sockets_have_ordinary_types_and_protocols(machine):
    number = NUMBERS[machine]["socket"]
    closed_on_exec = 0o2000000
    types = {t for t in range(16) if _verdict(machine, number, (2, t)) == "allowed"}
    assert types == {1, 2, 5}
    assert _verdict(machine, number, (2, 1 | closed_on_exec)) == "allowed"
    protocols = {p for p in range(300) if _verdict(machine, number, (2, 1, p)) == "allowed"}
    assert protocols == {0, 6, 17}
    pairs = {
        f
        for f in range(64)
        if _verdict(machine, NUMBERS[machine]["socketpair"], (f, 1)) == "allowed"
    }
    assert pairs == {1}


@pytest.mark.parametrize(
    ("level", "option", "verdict"),
    [
        (1, 2, "allowed"),  # SO_REUSEADDR
        (1, 7, 0),  # SO_SNDBUF: kept as it is, without an error
        (1, 8, 0),
        (1, 26, errno.ENOPROTOOPT),  # SO_ATTACH_FILTER
        (1, 60, errno.ENOPROTOOPT),  # SO_ZEROCOPY
        (6, 1, "allowed"),  # TCP_NODELAY
        (6, 31, errno.ENOPROTOOPT),  # TCP_ULP
        (41, 26, "allowed"),  # IPV6_V6ONLY
        (17, 100, errno.ENOPROTOOPT),  # UDP_ENCAP
        (255, 3, errno.ENOPROTOOPT),
    ],
)
def test_socket_options_are_allowed_by_name(machine, level, option, verdict):
    assert _verdict(machine, NUMBERS[machine]["setsockopt"], (3, level, option)) == verdict


def test_limits_and_priorities_change_for_the_caller_alone(machine):
    for name in ("prlimit64", "sched_setaffinity", "sched_setattr", "sched_setscheduler"):
        number = NUMBERS[machine][name]
        assert _verdict(machine, number, (0,)) == "allowed"
        assert {_verdict(machine, number, (pid,)) for pid in (1, 5, 9, -1)} == {errno.EPERM}
    number = NUMBERS[machine]["setpriority"]
    asked = [(0, 0), (0, 5), (0, 9), (1, 0), (1, 7), (2, 0)]
    assert [_verdict(machine, number, pair) == "allowed" for pair in asked] == [
        *(True, False, False),
        *(False, False, False),
    ]


def test_descriptors_cannot_be_made_to_signal_another_process(machine):
    fcntl, ioctl = NUMBERS[machine]["fcntl"], NUMBERS[machine]["ioctl"]
    refused = {c for c in range(1100) if _verdict(machine, fcntl, (3, c)) == errno.EPERM}
    assert refused == {8, 10, 15, 37, 38, 1024, 1026, 1031, 1036, 1038}
    assert _verdict(machine, ioctl, (3, 0x8901)) == errno.EPERM
    assert _verdict(machine, ioctl, (0, 0x5412)) == errno.EPERM
    assert _verdict(machine, ioctl, (0, 0x5413)) == "allowed"

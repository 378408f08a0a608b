"""The filter of jobs, run by an interpreter of classic BPF that shares nothing with its writer."""

import errno
import struct

import pytest

from sandboxd.seccomp import AUDIT_ARCHITECTURES, NUMBERS, REFUSED, UNKNOWN, X86_ONLY, job_filter

PROTECTED = (1, 7, 90)
ALLOWED = 0x7FFF0000
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
            }[code]
            at += if_true if holds else if_false
    if k & 0xFFFF0000 == 0x00050000:
        return k & 0xFFFF
    return {ALLOWED: "allowed", KILLED: "killed"}[k]


@pytest.fixture(params=sorted(NUMBERS))
def machine(request):
    return request.param


def test_escapes_are_refused_and_calls_with_fallback_are_unknown(machine):
    table = NUMBERS[machine]
    refused = (*REFUSED, *(X86_ONLY if machine == "x86_64" else ()))
    assert {_verdict(machine, table[name]) for name in refused} == {errno.EPERM}
    assert {_verdict(machine, table[name]) for name in UNKNOWN} == {errno.ENOSYS}


def test_every_call_that_the_filter_does_not_name_is_allowed(machine):
    named = set(NUMBERS[machine].values())
    verdicts = {_verdict(machine, number) for number in range(600) if number not in named}
    assert verdicts == {"allowed"}


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


@pytest.mark.parametrize("name", ["tkill", "rt_sigqueueinfo", "pidfd_open", "prlimit64"])
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
            machine, NUMBERS[machine]["socket"], (family,), internet_sockets=internet_sockets
        )
        for family in range(64)
    }
    assert {family for family, verdict in verdicts.items() if verdict == "allowed"} == families
    assert set(verdicts.values()) == {"allowed", errno.EAFNOSUPPORT}


def test_priorities_change_only_for_single_unprotected_processes(machine):
    number = NUMBERS[machine]["setpriority"]
    asked = [(0, 0), (0, 5), (0, 7), (1, 0), (1, 7), (2, 0)]
    assert [_verdict(machine, number, pair) == "allowed" for pair in asked] == [
        *(True, True, False),
        *(False, False, False),
    ]


def test_descriptors_cannot_be_made_to_signal_another_process(machine):
    fcntl, ioctl = NUMBERS[machine]["fcntl"], NUMBERS[machine]["ioctl"]
    refused = {c for c in range(20) if _verdict(machine, fcntl, (3, c)) == errno.EPERM}
    assert refused == {8, 10, 15}
    assert _verdict(machine, ioctl, (3, 0x8901)) == errno.EPERM
    assert _verdict(machine, ioctl, (0, 0x5412)) == errno.EPERM
    assert _verdict(machine, ioctl, (0, 0x5413)) == "allowed"

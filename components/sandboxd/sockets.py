"""Memory in the buffers of a sandbox's sockets, which the kernel counts for no process.

It is read through the kernel's sock_diag(7), which also lists sockets that no process has open
because they are in transit through another socket. Without it (gVisor), every socket counts with
the most that it can hold.

Values are from include/uapi/linux/{netlink,sock_diag,unix_diag,inet_diag}.h of Linux 6.12.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_SOCKSTAT = Path("/proc/self/net/sockstat")
_FEW_SOCKETS = 8
"""Number of sockets up to which their memory is ignored, as it fits a sandbox's own reserve."""
_BUFFER_BYTES = 212_992
"""Size of a buffer, net.core.wmem_default, which jobs cannot raise."""
_DATAGRAMS = 11
"""Most datagrams that wait at a local socket, net.unix.max_dgram_qlen + 1."""

_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x1 | 0x300
_DONE, _ERROR = 3, 2
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_UNIX_REQUEST = struct.Struct("=BBHIIIQ")
_UNIX_FIXED = 16
_UNIX_QUEUES, _UNIX_MEMORY = 4, 5
_SHOW_QUEUES_AND_MEMORY = 0x10 | 0x20
_INTERNET_REQUEST = struct.Struct("=BBBBI48x")
_INTERNET_FIXED = 72
_INTERNET_MEMORY = 7
_ALL_STATES = 0xFFFFFFFF
_RECEIVING, _SENDING, _QUEUED, _WAITING = 0, 2, 5, 7
"""Indices in an array of memory figures: sk_rmem_alloc, sk_wmem_alloc, sk_wmem_queued, backlog."""
_MESSAGE_BYTES = 2**16
_ANSWERS_WITHIN_S = 1.0


def held_bytes() -> int:
    """Bytes in the buffers of all sockets of this network namespace."""
    number = _number_of_sockets()
    if number <= _FEW_SOCKETS:
        return 0
    try:
        return _unix_bytes() + _internet_bytes()
    except OSError:
        return number * _BUFFER_BYTES


def _number_of_sockets() -> int:
    try:
        first = _SOCKSTAT.read_text(encoding="ascii").splitlines()[0]
        return int(first.split()[2])  # "sockets: used 12"
    except (OSError, IndexError, ValueError):
        return 0


def _unix_bytes() -> int:
    request = _UNIX_REQUEST.pack(
        socket.AF_UNIX, 0, 0, _ALL_STATES, 0, _SHOW_QUEUES_AND_MEMORY, 2**64 - 1
    )
    total = 0
    for message in _dumped(request):
        found = dict(_attributes(message[_UNIX_FIXED:]))
        queued = struct.unpack_from("=I", found.get(_UNIX_QUEUES, bytes(4)))[0]
        if queued and message[1] == socket.SOCK_DGRAM:  # the kernel reports only the first datagram
            queued = _DATAGRAMS * _BUFFER_BYTES
        total += max(_memory(found.get(_UNIX_MEMORY, b"")), queued)
    return total


def _internet_bytes() -> int:
    total = 0
    for family in (socket.AF_INET, socket.AF_INET6):
        for protocol in (socket.IPPROTO_TCP, socket.IPPROTO_UDP):
            wanted = 1 << (_INTERNET_MEMORY - 1)
            request = _INTERNET_REQUEST.pack(family, protocol, wanted, 0, _ALL_STATES)
            for message in _dumped(request):
                found = dict(_attributes(message[_INTERNET_FIXED:]))
                total += _memory(found.get(_INTERNET_MEMORY, b""))
    return total


def _memory(figures: bytes) -> int:
    words = struct.unpack(f"={len(figures) // 4}I", figures[: len(figures) // 4 * 4])
    if len(words) <= _WAITING:
        return 0
    return words[_RECEIVING] + max(words[_SENDING], words[_QUEUED]) + words[_WAITING]


def _dumped(request: bytes) -> Iterator[bytes]:
    """Bodies of the kernel's answers to a request.

    Raises:
        OSError: the kernel does not support the request.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as asking:
        asking.settimeout(_ANSWERS_WITHIN_S)
        size = _HEADER.size + len(request)
        asking.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 0, 0) + request)
        while True:
            received = asking.recv(_MESSAGE_BYTES)
            at = 0
            while at + _HEADER.size <= len(received):
                length, kind, *_ = _HEADER.unpack_from(received, at)
                body = received[at + _HEADER.size : at + length]
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    number = -struct.unpack_from("=i", body)[0]
                    raise OSError(number, "sock_diag")
                yield body
                at += _aligned(length)


def _attributes(packed: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(packed):
        length, kind = _ATTRIBUTE.unpack_from(packed, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind, packed[at + _ATTRIBUTE.size : at + length]
        at += _aligned(length)


def _aligned(length: int) -> int:
    return (length + 3) & ~3

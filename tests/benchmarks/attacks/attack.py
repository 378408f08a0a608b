"""What an attack is, and how its outcome is judged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from espalier.sandbox import Limits, Sandbox

PRELUDE = """
import ctypes, errno, fcntl, json, os, signal, socket, stat, struct, subprocess, sys
import threading, time
T = json.loads(os.environ["TARGETS"])
libc = ctypes.CDLL(None, use_errno=True)
def breach(what):
    print("BREACH", what, flush=True)
def tried(what, work):
    try:
        found = work()
    except (OSError, ValueError):
        return
    if found not in (None, False, b"", "", -1, []):
        breach(what)
def called(what, number, *words):
    ctypes.set_errno(0)
    if libc.syscall(number, *(ctypes.c_long(w) if isinstance(w, int) else w for w in words)) != -1:
        breach(what)
def connected(address, family=socket.AF_INET, timeout_s=1.5):
    with socket.socket(family) as s:
        s.settimeout(timeout_s)
        s.connect(tuple(address))
        return True
def answered(address, said):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(1.5)
        s.sendto(said, tuple(address))
        return s.recv(64)
"""
"""What every program begins with: it prints BREACH for everything that it should not have got."""

LIMITS = Limits(
    memory_bytes=192 * 2**20,
    cpu_s=3.0,
    processes=40,
    disk_bytes=64 * 2**20,
    output_bytes=64 * 1024,
    wall_s=12.0,
)
WALL_S = 10.0
"""Of one attack; it has to be over soon after that."""
LONG_WALL_S = 4.0
"""Of those that would go on for ever."""
THROUGH = "THROUGH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One hostile program, or what a hostile caller asks for.

    Attributes:
        kind: resources, processes, server, escape, rights, network, files or memory of others.
        name: what it tries.
        program: Python; run by `exec` after the prelude.
        asks: instead of a program, through the sandbox's own API; what it got that it should not.
        has_control: the same program outside of any sandbox, beside it, must succeed; else the
            attack counts as not tested. Other attacks have the control of `control`.
        point: of the list of ways to dodge in `dodging`; 0 for others.
        beside: a program that another run of the same sandbox runs meanwhile.
        then: a program that the next borrower runs, after the pool's reset and probe.
        elsewhere: a program that a neighbour's sandbox runs meanwhile.
        later: code of the session's next call; then `program` is the code of a call as well.
        wall_s: its time, where it is neither `WALL_S` nor `LONG_WALL_S`.
        milder: replaces `program` in the control: the same act, in an amount that does no harm.
    """

    kind: str
    name: str
    program: str = ""
    asks: Callable[[Sandbox, dict[str, object]], Awaitable[list[str]]] | None = None
    has_control: bool = False
    point: int = 0
    beside: str = ""
    then: str = ""
    elsewhere: str = ""
    later: str = ""
    wall_s: float = 0.0
    milder: str = ""

    @property
    def goes_on(self) -> bool:
        """Whether it never ends by itself; of any other it is asked whether it came to its end."""
        return self.kind in {"resources", "processes"}

    @property
    def source(self) -> str:
        """The whole program."""
        return whole(self.program)


def whole(text: str) -> str:
    """A program that says when it came to its end."""
    return f"{PRELUDE}{text}\nprint({THROUGH!r}, flush=True)\n"


def program(kind: str, name: str, text: str, *, control: bool = False, **more: Any) -> Attack:
    """An attack by a program; `more` as in `Attack`."""
    return Attack(kind=kind, name=name, program=text, has_control=control, **more)


def asking(
    kind: str,
    name: str,
    asks: Callable[[Sandbox, dict[str, object]], Awaitable[list[str]]],
    **more: Any,
) -> Attack:
    """An attack through the API; `more` as in `Attack`."""
    return Attack(kind=kind, name=name, asks=asks, **more)

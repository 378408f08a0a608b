"""Starts a job below its runner: a program by spawning it, Python code by forking.

A program is spawned without copying the runner's memory, which takes a third of the time. What
restricts it is inherited from the runner, which therefore lives under the same limits and filter.
"""

from __future__ import annotations

import errno
import math
import os
import resource
import shutil
import signal
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from sandboxd import interpreter, kernel
from sandboxd.processes import own_bytes
from sandboxd.seccomp import job_filter

_NOT_FOUND, _CANNOT_RUN = 127, 126
"""Exit statuses as shells have them."""
_STREAMS = ("stdin", "stdout", "stderr")
_CONTROL = 3
FILES_BYTES = 64 * 2**20
"""For files that a program maps, where they count: Python's are 17 MiB, with pandas 82."""
_RUNNER_BYTES = 4 * 2**20
"""What a runner may still need, however little its program is given."""
_MOST_DESCRIPTORS = 256
_ALL_DESCRIPTORS = 2**20
_DEFAULT_SIGNALS = (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ)
"""What the spawner, or Python, ignores."""


class CannotRunError(Exception):
    """The program is not there, or is none; `status` is what a shell would exit with."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def start(orders: Mapping[str, Any], descriptors: Mapping[str, int]) -> int:
    """Start a job in a session of its own; its process number.

    Args:
        orders: argv or code, env, limits, workspace, the processes to protect, whether internet
            sockets may be opened, and whether the kernel counts this sandbox's processes apart
            from others of the same user.
        descriptors: of the three streams, and of a session's control channel.

    Raises:
        CannotRunError: the program cannot be run.
        OSError: no process can be had.
    """
    os.chdir(orders["workspace"])
    os.umask(0o022)
    if orders["argv"]:
        _restrict(orders, [*orders["protect"], os.getpid()])
        return _spawn(orders["argv"], orders["env"], descriptors)
    first = os.fork()
    if first == 0:
        _become_python(orders, descriptors)
    return first


def _spawn(argv: list[str], env: Mapping[str, str], descriptors: Mapping[str, int]) -> int:
    program = shutil.which(argv[0], path=env.get("PATH", ""))
    if program is None:
        is_there = "/" in argv[0] and os.path.exists(argv[0])
        number = errno.EACCES if is_there else errno.ENOENT
        raise _cannot_run(argv[0], OSError(number, os.strerror(number)))
    try:
        return os.posix_spawn(
            program,
            argv,
            env,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, descriptors[name], place)
                for place, name in enumerate(_STREAMS)
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=_DEFAULT_SIGNALS,
        )
    except OSError as error:
        if error.errno in {errno.EAGAIN, errno.ENOMEM}:
            raise
        raise _cannot_run(argv[0], error) from error


def _cannot_run(program: str, error: OSError) -> CannotRunError:
    status = _NOT_FOUND if error.errno in {errno.ENOENT, errno.ENOTDIR} else _CANNOT_RUN
    return CannotRunError(f"sandboxd: cannot run {program!r}: {error.strerror}\n", status)


def _become_python(orders: Mapping[str, Any], descriptors: Mapping[str, int]) -> NoReturn:
    """Never returns to the runner's code."""
    try:
        os.setsid()
        has_control = _take(descriptors)
        kernel.show_memory()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _restrict(orders, [*orders["protect"], os.getppid()])
        os.environ.clear()
        os.environ.update(orders["env"])
        sys.path.insert(0, orders["workspace"])
        if has_control:
            interpreter.converse(_CONTROL)
        interpreter.run_once(orders["code"])
    finally:
        os._exit(_CANNOT_RUN)


def _take(descriptors: Mapping[str, int]) -> bool:
    """Put the streams on 0, 1 and 2 and a control channel on 3, close all else."""
    for place, name in enumerate(_STREAMS):
        os.dup2(descriptors[name], place)
    has_control = "control" in descriptors
    if has_control:
        os.dup2(descriptors["control"], _CONTROL, inheritable=False)
    os.closerange(_CONTROL + has_control, _ALL_DESCRIPTORS)
    return has_control


def _restrict(orders: Mapping[str, Any], protected: list[int]) -> None:
    limits = orders["limits"]
    _limit_memory(limits["memory_bytes"], is_program=bool(orders["argv"]))
    _limit(resource.RLIMIT_FSIZE, limits["disk_bytes"])
    _limit(resource.RLIMIT_NOFILE, _MOST_DESCRIPTORS)
    _limit(resource.RLIMIT_CORE, 0)
    if not orders["session"]:  # a session's calls are limited one by one, by the session itself
        cpu_s = math.ceil(limits["cpu_s"])
        _limit(resource.RLIMIT_CPU, cpu_s, hard=cpu_s + 1)
    if orders["counts_own_processes"]:
        besides = len(orders["protect"]) + 1
        _limit(resource.RLIMIT_NPROC, limits["processes"] + besides)
    kernel.filter_calls(
        job_filter(os.uname().machine, protected, internet_sockets=orders["internet_sockets"])
    )


def _limit_memory(memory_bytes: int, *, is_program: bool) -> None:
    """Python code may have so much beyond the interpreter; a program begins anew.

    gVisor takes RLIMIT_DATA and does not keep it; its RLIMIT_AS counts files as well, and addresses
    that are only kept free.
    """
    held = own_bytes("VmData")
    data_bytes = max(memory_bytes + (0 if is_program else held), held + _RUNNER_BYTES)
    _limit(resource.RLIMIT_DATA, data_bytes)
    if kernel.can_map(data_bytes):
        held = own_bytes("VmSize")
        besides = FILES_BYTES if is_program else held
        _limit(resource.RLIMIT_AS, max(memory_bytes + besides, held + _RUNNER_BYTES))


def _limit(what: int, soft: int, *, hard: int | None = None) -> None:
    most = resource.getrlimit(what)[1]
    highest = soft if hard is None else hard
    if most != resource.RLIM_INFINITY:
        highest = min(highest, most)
    resource.setrlimit(what, (min(soft, highest), highest))

"""A forked child becomes the job: its descriptors, its limits, then the program or Python code."""

from __future__ import annotations

import math
import os
import resource
import signal
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from sandboxd import interpreter, kernel
from sandboxd.processes import own_data_bytes
from sandboxd.seccomp import job_filter

_NOT_FOUND, _CANNOT_RUN = 127, 126
"""Exit statuses as shells have them."""
_STREAMS = ("stdin", "stdout", "stderr")
_CONTROL = 3
_MOST_DESCRIPTORS = 256
_ALL_DESCRIPTORS = 2**20
_FIRST_TO_DIE = b"1000"


def become(orders: Mapping[str, Any], descriptors: Mapping[str, int]) -> NoReturn:
    """Never returns to the runner's code: ends as the job ends, or with 126 or 127.

    Args:
        orders: argv or code, env, limits, workspace, the processes to protect, and whether the
            kernel counts this sandbox's processes apart from others of the same user.
        descriptors: of the three streams, and of a session's control channel.
    """
    try:
        has_control = _take(descriptors)
        _restrict(orders)
        if orders["argv"]:
            os.execvpe(orders["argv"][0], orders["argv"], orders["env"])
        os.environ.clear()
        os.environ.update(orders["env"])
        sys.path.insert(0, orders["workspace"])
        if has_control:
            interpreter.converse(_CONTROL)
        interpreter.run_once(orders["code"])
    except OSError as error:
        what = orders["argv"][0] if orders["argv"] else "python"
        os.write(2, f"sandboxd: cannot run {what!r}: {error.strerror}\n".encode())
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        os._exit(_NOT_FOUND if missing else _CANNOT_RUN)
    finally:
        os._exit(_CANNOT_RUN)


def _take(descriptors: Mapping[str, int]) -> bool:
    """Put the streams on 0, 1 and 2 and a control channel on 3, close all else."""
    for place, name in enumerate(_STREAMS):
        os.dup2(descriptors[name], place)
    if "control" in descriptors:
        os.dup2(descriptors["control"], _CONTROL, inheritable=False)
    has_control = "control" in descriptors
    os.closerange(_CONTROL + has_control, _ALL_DESCRIPTORS)
    return has_control


def _restrict(orders: Mapping[str, Any]) -> None:
    os.setsid()
    os.chdir(orders["workspace"])
    os.umask(0o022)
    kernel.show_memory()
    _write("/proc/self/oom_score_adj", _FIRST_TO_DIE)
    _default_signals(keep_python=not orders["argv"])
    _set_limits(orders)
    protected = [*orders["protect"], os.getppid()]
    kernel.filter_calls(job_filter(os.uname().machine, protected))


def _default_signals(*, keep_python: bool) -> None:
    """Undo what the spawner and the runner changed; Python itself ignores SIGPIPE and SIGXFSZ."""
    signal.signal(signal.SIGINT, signal.default_int_handler if keep_python else signal.SIG_DFL)
    if not keep_python:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _set_limits(orders: Mapping[str, Any]) -> None:
    limits = orders["limits"]
    has_interpreter = not orders["argv"]
    cpu_s = math.ceil(limits["cpu_s"])
    held = own_data_bytes() if has_interpreter else 0
    _limit(resource.RLIMIT_DATA, limits["memory_bytes"] + held)
    _limit(resource.RLIMIT_FSIZE, limits["disk_bytes"])
    _limit(resource.RLIMIT_NOFILE, _MOST_DESCRIPTORS)
    _limit(resource.RLIMIT_CORE, 0)
    if not orders["session"]:  # a session's calls are limited one by one, by the session itself
        _limit(resource.RLIMIT_CPU, cpu_s, hard=cpu_s + 1)
    if orders["counts_own_processes"]:
        _limit(resource.RLIMIT_NPROC, limits["processes"] + len(orders["protect"]) + 1)


def _limit(what: int, soft: int, *, hard: int | None = None) -> None:
    most = resource.getrlimit(what)[1]
    highest = soft if hard is None else hard
    if most != resource.RLIM_INFINITY:
        highest = min(highest, most)
    resource.setrlimit(what, (min(soft, highest), highest))


def _write(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    os.write(descriptor, data)
    os.close(descriptor)

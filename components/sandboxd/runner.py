"""Supervises one run: limits it, starts it, waits for it and ends all its processes.

Orphans become children of the nearest subreaper, which is the runner, however often a job forks and
whatever sessions it starts. So once the runner has no children, all processes of the run have
ended.

A program is spawned, because a fork would copy the runner's memory, which takes a third of the
time. It inherits its restrictions, so the runner sets limits and filter on itself. Python code is
forked.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from resource import struct_rusage
from typing import Any, NoReturn

from sandboxd import interpreter, kernel, landlock
from sandboxd.kernel import all_processes, descendants, own_bytes
from sandboxd.seccomp import job_filter

_NOT_FOUND, _CANNOT_RUN = 127, 126
"""Exit statuses that shells use."""
_STREAMS = ("stdin", "stdout", "stderr")
_CONTROL = 3
FILES_BYTES = 64 * 2**20
"""Extra bytes where a limit counts mapped files: Python maps 17 MiB, with pandas 82."""
_RUNNER_BYTES = 4 * 2**20
"""Memory for the runner itself, even with a smaller limit."""
_MOST_DESCRIPTORS = 256
_ALL_DESCRIPTORS = 2**20
_MOST_ADDRESSES = 32 * 2**30
"""Limit of the address space, which limits the page tables that a process can fill between two
samples to 64 MiB."""
_MOST_TIMERS_AND_SIGNALS = 1024
_NICENESS = 5
"""Niceness of jobs, so that sandboxd answers promptly."""
_DEFAULT_SIGNALS = (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that the spawner or Python ignores, reset for jobs."""


class CannotRunError(Exception):
    """The program is missing or cannot be run; `status` is a shell's exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def start_job(orders: Mapping[str, Any], descriptors: Mapping[str, int]) -> int:
    """Start a job in its own session and return its pid, once it shows its memory.

    Args:
        orders: argv or code, env, limits, workspace, writable folders, the pids to protect, ids and
            number of sandboxd's threads, whether internet sockets are allowed, version of
            Landlock, whether RLIMIT_NPROC counts only this sandbox's processes.
        descriptors: the three streams and a session's control channel, by name.

    Raises:
        CannotRunError: the program cannot be run.
        OSError: the fork failed.
    """
    os.chdir(orders["workspace"])
    os.umask(0o022)
    if orders["argv"]:
        _restrict(orders, [*orders["protect"], os.getpid()])
        return _spawn(orders["argv"], orders["env"], descriptors)
    shown, show = os.pipe()
    first = os.fork()
    if first == 0:
        _become_python(orders, descriptors, show)
    os.close(show)
    os.read(shown, 1)  # nothing, if the fork ended before
    os.close(shown)
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


def _become_python(
    orders: Mapping[str, Any], descriptors: Mapping[str, int], show: int
) -> NoReturn:
    """Turn the fork into the job; never return to the runner's code.

    `show` gets a byte once the job shows its memory. A process that hides its memory counts with
    its whole address space, which is here the warm interpreter's and not what the job holds.
    """
    try:
        os.setsid()
        has_control = _take(descriptors, show)
        kernel.show_memory()
        os.write(show, b"\0")
        os.close(show)
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


def _take(descriptors: Mapping[str, int], kept: int) -> bool:
    """Move the streams to 0, 1, 2 and a control channel to 3; close all others but `kept`.

    `kept` is the second end of a pipe, so its number is above 3.
    """
    for place, name in enumerate(_STREAMS):
        os.dup2(descriptors[name], place)
    has_control = "control" in descriptors
    if has_control:
        os.dup2(descriptors["control"], _CONTROL, inheritable=False)
    os.closerange(_CONTROL + has_control, kept)
    os.closerange(kept + 1, _ALL_DESCRIPTORS)
    return has_control


def _restrict(orders: Mapping[str, Any], protected: list[int]) -> None:
    limits = orders["limits"]
    _limit_memory(limits["memory_bytes"], is_program=bool(orders["argv"]))
    _limit(resource.RLIMIT_FSIZE, limits["disk_bytes"])
    _limit(resource.RLIMIT_NOFILE, _MOST_DESCRIPTORS)
    _limit(resource.RLIMIT_CORE, 0)
    with contextlib.suppress(OSError, ValueError):  # gVisor supports neither, and has no queues
        _limit(resource.RLIMIT_SIGPENDING, _MOST_TIMERS_AND_SIGNALS)
        _limit(resource.RLIMIT_MSGQUEUE, 0)
    os.nice(_NICENESS)
    if not orders["session"]:  # in a session each call has its limit (interpreter._allow_cpu)
        cpu_s = math.ceil(limits["cpu_s"])
        _limit(resource.RLIMIT_CPU, cpu_s, hard=cpu_s + 1)
    if orders["counts_own_processes"]:
        besides = len(orders["protect"]) + orders["threads"] + 1
        _limit(resource.RLIMIT_NPROC, limits["processes"] + besides)
    kernel.renounce_rights()
    landlock.confine(orders["writable"], orders["landlock"])
    protected = [*protected, *orders["protect_threads"]]
    kernel.filter_calls(
        job_filter(os.uname().machine, protected, internet_sockets=orders["internet_sockets"])
    )


def _limit_memory(memory_bytes: int, *, is_program: bool) -> None:
    """Limit memory: for Python code in addition to the interpreter's own, for a program in total.

    gVisor accepts RLIMIT_DATA without enforcing it, which `can_map` detects; its RLIMIT_AS counts
    mapped files and reserved addresses, too.
    """
    held = own_bytes("VmData")
    data_bytes = max(memory_bytes + (0 if is_program else held), held + _RUNNER_BYTES)
    _limit(resource.RLIMIT_DATA, data_bytes)
    addresses = memory_bytes + _MOST_ADDRESSES
    if kernel.can_map(data_bytes):
        held = own_bytes("VmSize")
        besides = FILES_BYTES if is_program else held
        addresses = max(memory_bytes + besides, held + _RUNNER_BYTES)
    _limit(resource.RLIMIT_AS, addresses)


def _limit(what: int, soft: int, *, hard: int | None = None) -> None:
    most = resource.getrlimit(what)[1]
    highest = soft if hard is None else hard
    if most != resource.RLIM_INFINITY:
        highest = min(highest, most)
    resource.setrlimit(what, (min(soft, highest), highest))


_ROUNDS = 40
"""Most rounds of kills; one that finds no new process does not count. A fork bomb that starts a
session for each process survives some of them."""
_DIE_WITHIN_S = 2.0
"""Time for killed processes to end, which takes processor time that a busy machine gives late;
shorter than sandboxd waits before it ends everything."""
_LEAST_LOOKS = 200
"""Looks for what is left that are made whatever the time: on a machine that stands still for
seconds the processes do as well. They take half a second where it does not."""
_ROUND_PAUSE_S = 0.002
_WAITED_FOR = frozenset({signal.SIGCHLD, signal.SIGTERM})


def supervise(orders: Mapping[str, Any], descriptors: dict[str, int]) -> None:
    """Run a job to its end or until SIGTERM; report this pid first and the job's end last."""
    kernel.adopt_orphans()
    kernel.die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)  # before the fork: `_wait` must miss none
    os.setsid()
    report = descriptors.pop("report")
    _say(report, {"runner": os.getpid()})
    try:
        first = start_job(orders, descriptors)
    except CannotRunError as error:
        os.write(descriptors["stderr"], str(error).encode())
        _say(report, _ending(error.status << 8, None))
        return
    except OSError as error:
        os.write(report, refusal(error))
        return
    _say(report, {"job": first})
    for descriptor in descriptors.values():
        os.close(descriptor)
    ended = _wait(first)
    killed = _end_descendants(first if ended is None else None)
    status, usage = ended or killed or (None, None)
    _say(report, _ending(status, usage))


def refusal(error: OSError) -> bytes:
    """Report line of a run that could not start for lack of processes or memory."""
    return json.dumps({"refused": f"the sandbox cannot fork: {error.strerror}"}).encode() + b"\n"


def _ending(status: int | None, usage: struct_rusage | None) -> dict[str, object]:
    return {
        "wait_status": status,
        "cpu_s": usage.ru_utime + usage.ru_stime if usage else 0.0,
        "max_rss_bytes": usage.ru_maxrss * 1024 if usage else 0,
        "clean": not _has_children(),
    }


def _say(report: int, what: Mapping[str, object]) -> None:
    os.write(report, json.dumps(what).encode() + b"\n")


def _wait(first: int) -> tuple[int, struct_rusage] | None:
    """Wait for the job: its status and resource usage, or None at a SIGTERM from sandboxd."""
    while True:
        ended = _reap(first)
        if ended is not None:
            return ended
        if signal.sigwait(_WAITED_FOR) == signal.SIGTERM:
            return None


def _reap(first: int | None) -> tuple[int, struct_rusage] | None:
    """Reap ended children; return the job's status and usage if it is among them."""
    found = None
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == first:
            found = status, usage


def _end_descendants(first: int | None) -> tuple[int, struct_rusage] | None:
    found, killed, rounds, looks = None, set[int](), 0, 0
    until = time.monotonic() + _DIE_WITHIN_S
    while rounds < _ROUNDS and (looks < _LEAST_LOOKS or time.monotonic() < until):
        looks += 1
        found = _reap(first) or found
        if not _has_children():
            break
        living = _kill_all()
        rounds += not living <= killed
        killed |= living
        time.sleep(_ROUND_PAUSE_S)
    return found


def _kill_all() -> set[int]:
    """Kill all process groups; the kernel kills a group atomically, so no fork escapes.

    Returns:
        Pids of the processes that had not ended yet.
    """
    living = {process.pid for process in descendants(os.getpid(), all_processes())}
    for pid in living:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(os.getpgid(pid), signal.SIGKILL)
    return living


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True

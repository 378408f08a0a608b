"""All runs of the sandbox, and the spawners that start them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from sandboxd import kernel, landlock
from sandboxd.kernel import all_processes
from sandboxd.metrics import Metrics
from sandboxd.run import Descriptors, Output, Run, Session, pump
from sandboxd.spawner import ORDER, READY
from sandboxd.wire import Killer, Limits, RequestError, RunEnd, RunRequest, end_frame

_SPAWNER_ENVIRONMENT = {
    "PATH": f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",  # a thread of the spawner would be lost in its forks
    "OPENBLAS_NUM_THREADS": "1",
}
_CHANNEL = 3
_RETRY_S = 0.2


class Spawner:
    """Handle of a spawner process: starts it, sends it runs, restarts it when it ends."""

    def __init__(self, preimport: Sequence[str]) -> None:
        self._preimport = preimport
        self._channel: socket.socket | None = None
        self._ready = asyncio.Event()
        self.pid = 0

    def start(self) -> None:
        """Start the process without waiting for its imports."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-m", "sandboxd.spawner", str(_CHANNEL), *self._preimport],
                _SPAWNER_ENVIRONMENT,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), _CHANNEL),
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                ],
            )
        ours.settimeout(0)
        self._channel = ours
        self._ready.clear()
        asyncio.get_running_loop().add_reader(ours, self._on_message)

    async def order(self, descriptors: Sequence[int]) -> None:
        """Send the descriptors of a run in the order of `ORDER`; they stay open here, too."""
        if len(descriptors) > len(ORDER):
            raise ValueError(f"a run has at most {len(ORDER)} descriptors")
        await self._ready.wait()
        assert self._channel is not None
        socket.send_fds(self._channel, [b"run"], descriptors)

    async def ready(self) -> None:
        """Wait until the process has imported its modules."""
        await self._ready.wait()

    def restart(self) -> None:
        """Replace an ended process; repeat that while the fork fails."""
        self.drop()
        try:
            self.start()
        except OSError:
            asyncio.get_running_loop().call_later(_RETRY_S, self.restart)

    def drop(self) -> None:
        """Close the channel of an ended process; runs wait until SIGCHLD restarts it."""
        self._ready.clear()
        if self._channel is not None:
            asyncio.get_running_loop().remove_reader(self._channel)
            self._channel.close()
            self._channel = None

    def _on_message(self) -> None:
        assert self._channel is not None
        try:
            message = self._channel.recv(len(READY))
        except ConnectionResetError:
            message = b""
        if message == READY:
            self._ready.set()
        else:
            self.drop()


FILE_THREADS = 2
"""Number of sandboxd's threads for files, which count as processes of the jobs' user."""
_MOST_RUNS = 16
_START_WITHIN_S = 20.0
_END_WITHIN_S = 3.0
_PIPES_END_WITHIN_S = 1.0
_POLL_S = 0.005
_ENVIRONMENT = {
    "PATH": "/opt/sandbox/bin:/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


class Runs:
    """Starts, times and ends the runs of the sandbox.

    Args:
        writable: folders that runs may write; the first is the workspace, where they start.
        limits: maximum limits of every run.
        preimport: modules imported before Python runs.
        metrics: counts ended runs.
        counts_processes: whether RLIMIT_NPROC counts only this sandbox's processes, so that it can
            limit them.
        internet_sockets: whether runs may open internet sockets.
    """

    def __init__(
        self,
        writable: Sequence[Path],
        limits: Limits,
        preimport: Sequence[str],
        metrics: Metrics,
        *,
        counts_processes: bool,
        internet_sockets: bool,
    ) -> None:
        self._workspace = writable[0]
        self._writable = writable
        self._limits = limits
        self._metrics = metrics
        self._programs, self._python = Spawner(()), Spawner(preimport)
        self._session = Session(self._start_session)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_quiet = False
        self._resets = 0
        self._counts_processes = counts_processes
        self._internet_sockets = internet_sockets
        self._landlock = landlock.version()
        self.active: set[Run] = set()
        self.began = asyncio.Event()

    async def start(self) -> None:
        """Start the spawners, and reap all ended processes, because pid 1 gets the orphans."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)
        for spawner in (self._programs, self._python):
            spawner.start()
        for spawner in (self._programs, self._python):
            await spawner.ready()

    async def open(self, request: RunRequest) -> Output:
        """Start a run and return its output, whose last frame is the run's end.

        Raises:
            RequestError: too many runs, the sandbox is being reset, or it cannot fork.
        """
        if self._is_quiet or len(self.active) >= _MOST_RUNS:
            raise RequestError("the sandbox is busy", status=429)
        resets = self._resets
        run = await (self._session.begin() if request.session else self._start(request))
        if self._resets != resets:  # the sandbox was reset while this run waited to start
            if request.session:
                self._session.leave()
            self.kill(run, "sandbox")
            raise RequestError("the sandbox was reset", status=409)
        output = Output(request.limits.output_bytes, partial(self.kill, run))
        follow = self._session.call if request.session else self._follow
        run.readers += 1
        self.began.set()
        self._run_in_background(self._finish(run, request, follow(run, request, output), output))
        return output

    def kill(self, run: Run, cause: Killer) -> None:
        """End a run and all its processes; end everything if its runner cannot do so in time."""
        if not run.ended.is_set():
            run.kill(cause)
            asyncio.get_running_loop().call_later(
                _END_WITHIN_S, self._end_everything_unless_ended, run
            )

    @contextlib.contextmanager
    def between_runs(self) -> Iterator[None]:
        """Refuse new runs within the block; an idle session stays.

        Raises:
            RequestError: a run is in progress, or the sandbox is being reset.
        """
        if self._is_quiet or any(run.readers for run in self.active):
            raise RequestError("a run is in progress", status=409)
        self._is_quiet = True
        try:
            yield
        finally:
            self._is_quiet = False

    @contextlib.asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """Kill all runs, and refuse new ones within the block.

        Raises:
            RequestError: the sandbox is being reset already.
        """
        if self._is_quiet:
            raise RequestError("the sandbox is being reset", status=409)
        self._is_quiet = True
        self._resets += 1
        try:
            for run in self.active:
                self.kill(run, "sandbox")
            for run in tuple(self.active):
                await run.ended.wait()
            if self.strays():
                self.end_everything()
            while self.strays():
                await asyncio.sleep(_POLL_S)
            for spawner in (self._programs, self._python):
                await spawner.ready()
            yield
        finally:
            self._is_quiet = False

    def strays(self) -> list[int]:
        """Pids of processes that are neither sandboxd, nor a spawner, nor a runner."""
        spawners = {self._programs.pid, self._python.pid}
        known = {os.getpid(), *spawners}
        return [
            process.pid
            for process in all_processes().values()
            if process.pid not in known and process.parent not in spawners
        ]

    def end_everything(self) -> None:
        """Kill all other processes; kill(-1) by pid 1 is atomic, so none escapes by forking."""
        assert os.getpid() == 1, "elsewhere this would kill the user's other processes"
        self._metrics.count("sandboxd_swept_total")
        for spawner in (self._programs, self._python):
            spawner.drop()
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)

    async def _start(self, request: RunRequest) -> Run:
        spawner = self._python if not request.argv else self._programs
        orders = {
            "argv": request.argv,
            "code": request.code,
            "session": request.session,
            "env": _ENVIRONMENT | {"HOME": str(self._workspace)} | dict(request.env),
            "limits": asdict(request.limits),
            "workspace": str(self._workspace),
            "counts_own_processes": self._counts_processes,
            "internet_sockets": self._internet_sockets,
            "writable": [str(folder) for folder in self._writable],
            "landlock": self._landlock,
            "threads": FILE_THREADS,
            "protect": (os.getpid(), self._programs.pid, self._python.pid),
            "protect_threads": kernel.own_threads(),
        }
        try:
            descriptors = Descriptors(orders, request.stdin, with_control=request.session)
            with contextlib.ExitStack() as undo:
                undo.callback(descriptors.close)
                async with asyncio.timeout(_START_WITHIN_S):
                    await spawner.order(descriptors.child_ends)
                undo.pop_all()
        except OSError as error:  # a TimeoutError is one
            raise RequestError(f"the sandbox cannot start a run: {error}", status=503) from error
        descriptors.close_child_ends()
        run = Run(request.limits, descriptors)
        self.active.add(run)
        self._run_in_background(self._wait_for_end(run))
        return run

    async def _start_session(self) -> Run:
        return await self._start(RunRequest(session=True, limits=self._limits))

    async def _wait_for_end(self, run: Run) -> None:
        await run.follow()
        if not run.is_clean:
            self.end_everything()
        self._close_if_over(run)

    async def _finish(
        self, run: Run, request: RunRequest, ending: Coroutine[None, None, RunEnd], output: Output
    ) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(request.limits.wall_s, self.kill, run, "wall_time")
        end: RunEnd | None = None
        try:
            end = await ending
        finally:
            timer.cancel()
            run.readers -= 1
            if end is None:  # after a failure here, the run ends, and the client gets its end frame
                self.kill(run, "sandbox")
                end = run.end(truncated=output.truncated)
            self._close_if_over(run)
            self._metrics.count_run(request, end, output.dropped_bytes)
            await output.put(end_frame(end))
            await output.put(None)

    def _close_if_over(self, run: Run) -> None:
        if run.ended.is_set() and run.readers == 0 and run in self.active:
            self.active.remove(run)
            run.descriptors.close()

    def _end_everything_unless_ended(self, run: Run) -> None:
        if not run.ended.is_set():
            self.end_everything()

    def _run_in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the event loop has only weak references to tasks
        task.add_done_callback(self._tasks.discard)

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for spawner in (self._programs, self._python):
                if pid == spawner.pid:
                    spawner.restart()

    async def _follow(self, run: Run, request: RunRequest, output: Output) -> RunEnd:
        stop = asyncio.get_running_loop().create_future()
        pumps = [
            asyncio.create_task(pump(run.descriptors.stdout, "stdout", output, stop)),
            asyncio.create_task(pump(run.descriptors.stderr, "stderr", output, stop)),
        ]
        await run.ended.wait()
        await asyncio.wait(pumps, timeout=_PIPES_END_WITHIN_S)
        stop.set_result(None)
        await asyncio.gather(*pumps)
        if run.refused:
            await output.take("stderr", run.refused.encode())
        return run.end(truncated=output.truncated)

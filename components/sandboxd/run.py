"""One run or session: its pipes, its output, its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from sandboxd import kernel
from sandboxd.interpreter import CALL, REPLY
from sandboxd.standstill import Standstill, activities_below
from sandboxd.wire import Killer, Limits, RequestError, RunEnd, RunRequest, output_frame

_CHUNK_BYTES = 64 * 1024
_CHUNKS_OF_A_FULL_PIPE = 17
"""Number of reads that empty a pipe, which has at most 1 MiB."""


async def arriving(
    descriptor: int, stop: asyncio.Future[None] | None = None
) -> AsyncIterator[bytes]:
    """Yield data until the end of a pipe, or until `stop`, and then the pipe's remaining data.

    A job may open the reading end of its own output below /proc and take the data away.
    """
    while await _readable(descriptor, stop):
        try:
            data = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            continue
        if not data:
            return
        yield data
    with contextlib.suppress(BlockingIOError):
        for _ in range(_CHUNKS_OF_A_FULL_PIPE):
            if data := os.read(descriptor, _CHUNK_BYTES):
                yield data


async def _readable(descriptor: int, stop: asyncio.Future[None] | None) -> bool:
    """Wait for data or the end of a pipe; False if `stop` came first."""
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake(*_: object) -> None:
        if not woken.done():
            woken.set_result(None)

    loop.add_reader(descriptor, wake)
    if stop is not None:
        stop.add_done_callback(wake)
    try:
        await woken
    finally:
        loop.remove_reader(descriptor)
        if stop is not None:
            stop.remove_done_callback(wake)
    return stop is None or not stop.done()


_WAITING_FRAMES = 16
FLOOD_BYTES = 64 * 2**20
"""Bytes of output beyond the limit that are dropped before the program is killed."""


class Output:
    """Output of a run, limited in size, and produced no faster than the client reads."""

    def __init__(self, cap_bytes: int, kill: Callable[[Killer], None]) -> None:
        self._left = cap_bytes
        self._kill = kill
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(_WAITING_FRAMES)
        self._abandoned = self._is_over = False
        self.dropped_bytes = 0

    @property
    def truncated(self) -> bool:
        """Whether output was dropped."""
        return self.dropped_bytes > 0

    async def take(self, stream: str, data: bytes) -> None:
        """Queue output up to the limit; wait while the client does not read."""
        kept, dropped = data[: self._left], len(data) - min(len(data), self._left)
        self._left -= len(kept)
        self.dropped_bytes += dropped
        if dropped and self.dropped_bytes > FLOOD_BYTES:
            self._kill("output")
        if kept:
            await self.put(output_frame(stream, kept))

    async def put(self, frame: bytes | None) -> None:
        """Queue a frame; None marks the end."""
        self._is_over = frame is None
        if not self._abandoned:
            await self._queue.put(frame)

    def abandon(self) -> None:
        """Kill the run, because its client is gone, and drop queued and later output."""
        self._abandoned = True
        if not self._is_over:
            self._kill("closed")
        with contextlib.suppress(asyncio.QueueEmpty):
            while True:
                self._queue.get_nowait()

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield frames until the end."""
        while (frame := await self._queue.get()) is not None:
            yield frame


async def pump(descriptor: int, stream: str, output: Output, stop: asyncio.Future[None]) -> None:
    """Copy a pipe into the output."""
    async for data in arriving(descriptor, stop):
        await output.take(stream, data)


CANNOT_START = 126


class Descriptors:
    """Both ends of a run's pipes; the child ends go to the spawner, the own ends stay here."""

    def __init__(self, orders: Mapping[str, Any], stdin: bytes, *, with_control: bool) -> None:
        self._child_ends: list[int] = []
        self._own_ends: list[int] = []
        self.control: socket.socket | None = None
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._child_ends.append(kernel.sealed_file("orders", json.dumps(orders).encode()))
            self._child_ends.append(
                kernel.sealed_file("stdin", stdin) if stdin else os.open(os.devnull, os.O_RDONLY)
            )
            self.stdout, self.stderr, self.report = self._pipe(), self._pipe(), self._pipe()
            if with_control:
                self.control, child_end = socket.socketpair()
                self.control.settimeout(0)
                self._child_ends.append(child_end.detach())
            undo.pop_all()

    @property
    def child_ends(self) -> tuple[int, ...]:
        """Descriptors for the spawner, in the order of `spawner.ORDER`."""
        return tuple(self._child_ends)

    def close_child_ends(self) -> None:
        """Close the child ends, after the spawner got them."""
        while self._child_ends:
            os.close(self._child_ends.pop())

    def close(self) -> None:
        """Close all descriptors."""
        self.close_child_ends()
        while self._own_ends:
            os.close(self._own_ends.pop())
        if self.control is not None:
            self.control.close()

    def _pipe(self) -> int:
        own_end, child_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(own_end, False)
        self._own_ends.append(own_end)
        self._child_ends.append(child_end)
        return own_end


class Run:
    """A job under its runner; a session is a run with many calls."""

    def __init__(self, limits: Limits, descriptors: Descriptors) -> None:
        self.limits = limits
        self.descriptors = descriptors
        self.runner_pid = 0
        self.job_pid = 0
        self.cpu_before_s = 0.0
        self.killed_by: Killer | None = None
        self.refused: str | None = None
        self.is_clean = True
        self.ended = asyncio.Event()
        self.readers = 0
        self._started_s = time.monotonic()
        self._report: Mapping[str, Any] = {}

    def kill(self, cause: Killer) -> None:
        """Signal the runner to end the job; the first cause is reported."""
        self.killed_by = self.killed_by or cause
        if self.runner_pid and not self.ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.runner_pid, signal.SIGTERM)

    async def follow(self) -> None:
        """Read the runner's report, whose last line means that all processes have ended."""
        received = b""
        try:
            async for data in arriving(self.descriptors.report):
                *lines, received = (received + data).split(b"\n")
                for line in lines:
                    self._on_report(json.loads(line))
                if self._report or self.refused:
                    break
        except ValueError:  # not written by a runner; treated as if the runner had been killed
            self.is_clean = False
        finally:
            self.ended.set()
            if self.descriptors.control is not None:  # another run may still have the other end
                with contextlib.suppress(OSError):
                    self.descriptors.control.shutdown(socket.SHUT_RDWR)

    def end(self, *, truncated: bool, exit_status: int | None = None) -> RunEnd:
        """Content of the end frame; `exit_status` is given for a call of a continuing session."""
        status, number = exit_status, None
        if exit_status is None:
            status, number = self._how_it_ended()
        return RunEnd(
            exit_status=status,
            signal=number,
            killed_by=self.killed_by,
            truncated=truncated,
            duration_s=time.monotonic() - self._started_s,
            cpu_s=self._report.get("cpu_s", 0.0),
            max_rss_bytes=self._report.get("max_rss_bytes", 0),
        )

    def restart_clock(self) -> None:
        """Restart the clocks for a session's call: wall time, the interpreter's processor time."""
        self._started_s = time.monotonic()
        self.cpu_before_s = kernel.cpu_seconds(self.job_pid) if self.job_pid else 0.0

    @property
    def elapsed_s(self) -> float:
        """Wall time since the run, or a session's call, began."""
        return time.monotonic() - self._started_s

    def _on_report(self, entry: Mapping[str, Any]) -> None:
        if "runner" in entry:
            self.runner_pid = entry["runner"]
            if self.killed_by is not None:
                self.kill(self.killed_by)
        elif "job" in entry:
            self.job_pid = entry["job"]
        elif "refused" in entry:
            self.refused = entry["refused"]
        else:
            self._report = entry
            self.is_clean = entry["clean"]

    def _how_it_ended(self) -> tuple[int | None, int | None]:
        if self.refused is not None:
            self.killed_by = self.killed_by or "processes"
            return CANNOT_START, None
        status = self._report.get("wait_status")
        if status is None:  # the runner itself was killed, or could not end the job
            self.killed_by, self.is_clean = self.killed_by or "sandbox", False
            return None, signal.SIGKILL.value
        if os.WIFSIGNALED(status):
            return None, os.WTERMSIG(status)
        return os.WEXITSTATUS(status), None


_ENDS_WITHIN_S = 1.0
_WAITS_WITHIN_S = 0.5
_LEAST_WAITS = 50
"""Looks at an interpreter that has replied and does not wait yet, which are made whatever the time:
on a machine that stands still for a second the interpreter does as well."""
_POLL_S = 0.005
_SHORT_POLLS = 8
_SHORT_POLL_S = 0.00002
_CONTROL = 3
"""Number of the interpreter's descriptor of its channel."""
_STATUSES = (0, 1)
_STOPPING_ROUNDS = 20
_FIRST_LOOK_S, _LOOKS_EVERY_S = 0.02, 0.5


class Session:
    """The Python session: one interpreter that keeps its namespace from call to call.

    The code of a call shares a process with the interpreter, so it can write to the channel, too. A
    reply therefore counts only if it has this call's number, nothing follows it, and the
    interpreter waits for the next call, which the kernel shows or (gVisor) a reply to an empty call
    proves; otherwise the session ends. A forged reply can at most change the result of its own
    call, as `sys.exit` can.

    Between calls every process of the session is stopped. So nothing runs without a limit, and the
    result of a call does not depend on the time before it. Each process has a moment to stop after
    a call; a session is ended if a process does not stop, or wakes itself up by a signal that it
    has arranged (`Standstill`).
    """

    def __init__(self, start: Callable[[], Awaitable[Run]]) -> None:
        self._start = start
        self._run: Run | None = None
        self._is_busy = False
        self._calls = 0
        self._standstill = Standstill()
        self._looking: asyncio.Task[None] | None = None

    async def begin(self) -> Run:
        """Reserve the interpreter for one `call`, starting it if needed.

        Raises:
            RequestError: another call is in progress.
        """
        if self._is_busy:
            raise RequestError("the session is busy with another call", status=409)
        self._is_busy = True
        try:
            await self._end_if_moved()
            if self._run is None or self._run.ended.is_set():
                self._run, self._calls = await self._start(), 0
        except BaseException:
            self._is_busy = False
            raise
        return self._run

    def leave(self) -> None:
        """Release the interpreter without a call."""
        self._is_busy = False

    async def call(self, run: Run, request: RunRequest, output: Output) -> RunEnd:
        """Run code in the namespace; its output includes output since the last call."""
        run.restart_clock()
        stop = asyncio.get_running_loop().create_future()
        pumps = [
            asyncio.create_task(pump(run.descriptors.stdout, "stdout", output, stop)),
            asyncio.create_task(pump(run.descriptors.stderr, "stderr", output, stop)),
        ]
        self._calls += 1
        try:
            if self._calls > 1:
                _resume(run)
            assert request.code is not None
            source, cpu_s = request.code.encode(), request.limits.cpu_s
            status = await _exchange(run, self._calls, source, cpu_s)
            if status is None or not await _waits_for_a_call(run, cpu_s):
                status = None
                await _wait_for_end(run)
            elif not _stop(run):
                status = None
                run.kill("processes")
                await run.ended.wait()
        finally:
            stop.set_result(None)
            await asyncio.gather(*pumps)
            self._standstill = Standstill()
            self._looking = asyncio.create_task(self._look_between_calls(run))
            self._is_busy = False
        return run.end(truncated=output.truncated, exit_status=status)

    async def _end_if_moved(self) -> None:
        """Stop the looks between calls, and end a session that did not stand still."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
            self._looking = None
        if self._run is None or self._run.ended.is_set() or not self._standstill.was_seen:
            return
        self._standstill.look(activities_below(self._run.runner_pid))
        if self._standstill.is_broken:
            self._run.kill("sandbox")
            await _wait_for_end(self._run)

    async def _look_between_calls(self, run: Run) -> None:
        standstill, pause_s = self._standstill, _FIRST_LOOK_S
        with contextlib.suppress(OSError):  # a session that cannot be checked is ended, too
            while not standstill.is_broken:
                await asyncio.sleep(pause_s)
                if run.ended.is_set():  # the runner's pid may belong to another process now
                    return
                standstill.look(activities_below(run.runner_pid))
                for process, thread in standstill.moving:
                    if thread:
                        kernel.stop_thread(process, thread)
                longer_s = min(2 * pause_s, _LOOKS_EVERY_S)
                pause_s = longer_s if standstill.may_take_long else _FIRST_LOOK_S
        run.kill("sandbox")


async def _exchange(run: Run, number: int, source: bytes, cpu_s: float) -> int | None:
    """Send the code and wait for its exit status; None if there is no valid reply."""
    control, loop = run.descriptors.control, asyncio.get_running_loop()
    assert control is not None
    reply = b""
    try:
        await loop.sock_sendall(control, CALL.pack(number, cpu_s, len(source)) + source)
        while len(reply) < REPLY.size:
            data = await loop.sock_recv(control, 2 * REPLY.size)
            if not data:
                return None
            reply += data
    except ConnectionError:
        return None
    if len(reply) > REPLY.size:
        return None
    named, status = REPLY.unpack(reply)
    return status if named == number and status in _STATUSES else None


async def _waits_for_a_call(run: Run, cpu_s: float) -> bool:
    """Whether the interpreter waits for a call, and has sent nothing after its reply.

    Where the kernel does not show what a process waits for (gVisor), an empty call is sent: after a
    forged reply, the interpreter's own reply to the former call comes first, with its number.
    """
    control = run.descriptors.control
    assert control is not None
    until, looks = time.monotonic() + _WAITS_WITHIN_S, 0
    while (reading := kernel.is_reading(run.job_pid, _CONTROL)) is not True:
        if reading is None:
            if await _exchange(run, secrets.randbits(32), b"", cpu_s) != 0:
                return False
            break
        looks += 1
        if run.ended.is_set() or (looks > _LEAST_WAITS and time.monotonic() > until):
            return False
        for _ in range(_SHORT_POLLS):  # it needs only a moment, less than the event loop's timer
            time.sleep(_SHORT_POLL_S)
            if kernel.is_reading(run.job_pid, _CONTROL):
                break
        else:
            await asyncio.sleep(_POLL_S)
    with contextlib.suppress(BlockingIOError, ConnectionError):
        control.recv(1, socket.MSG_PEEK)
        return False
    return True


def _resume(run: Run) -> None:
    """Continue the stopped processes of a run, which cannot have started others meanwhile."""
    for pid in kernel.pids_below(run.runner_pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _stop(run: Run) -> bool:
    """Stop all processes of a run; False if new ones keep appearing."""
    stopped: set[int] = set()
    for _ in range(_STOPPING_ROUNDS):
        new = kernel.pids_below(run.runner_pid) - stopped
        if not new:
            return True
        for pid in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        stopped |= new
    return False


async def _wait_for_end(run: Run) -> None:
    try:
        async with asyncio.timeout(_ENDS_WITHIN_S):
            await run.ended.wait()
    except TimeoutError:
        run.kill("sandbox")
        await run.ended.wait()

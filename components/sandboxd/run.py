"""One run in flight: its pipes, its runner's report, and why it ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Mapping
from typing import Any

from sandboxd import kernel
from sandboxd.pipes import arriving
from sandboxd.wire import Killer, Limits, RunEnd

CANNOT_START = 126


class Descriptors:
    """Both ends of a run's pipes: theirs go to the spawner, ours stay."""

    def __init__(self, orders: Mapping[str, Any], stdin: bytes, *, with_control: bool) -> None:
        self._theirs: list[int] = []
        self._ours: list[int] = []
        self.control: socket.socket | None = None
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._theirs.append(kernel.sealed_file("orders", json.dumps(orders).encode()))
            self._theirs.append(
                kernel.sealed_file("stdin", stdin) if stdin else os.open(os.devnull, os.O_RDONLY)
            )
            self.stdout, self.stderr, self.report = self._pipe(), self._pipe(), self._pipe()
            if with_control:
                self.control, theirs = socket.socketpair()
                self.control.settimeout(0)
                self._theirs.append(theirs.detach())
            undo.pop_all()

    @property
    def theirs(self) -> tuple[int, ...]:
        """In the spawner's order."""
        return tuple(self._theirs)

    def close_theirs(self) -> None:
        """After they were handed over."""
        while self._theirs:
            os.close(self._theirs.pop())

    def close(self) -> None:
        """All of them."""
        self.close_theirs()
        while self._ours:
            os.close(self._ours.pop())
        if self.control is not None:
            self.control.close()

    def _pipe(self) -> int:
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(ours, False)
        self._ours.append(ours)
        self._theirs.append(theirs)
        return ours


class Run:
    """One job under its runner; a session is a run that answers many calls."""

    def __init__(self, limits: Limits, descriptors: Descriptors) -> None:
        self.limits = limits
        self.descriptors = descriptors
        self.runner_pid = 0
        self.killed_by: Killer | None = None
        self.refused: str | None = None
        self.is_clean = True
        self.ended = asyncio.Event()
        self.readers = 0
        self._started_s = time.monotonic()
        self._report: Mapping[str, Any] = {}

    def kill(self, cause: Killer) -> None:
        """Have the runner end it; the first cause is the one that is told."""
        self.killed_by = self.killed_by or cause
        if self.runner_pid and not self.ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.runner_pid, signal.SIGTERM)

    async def follow(self) -> None:
        """Read the runner's report: after its last line no process of the run is left."""
        received = b""
        try:
            async for data in arriving(self.descriptors.report):
                *lines, received = (received + data).split(b"\n")
                for line in lines:
                    self._hear(json.loads(line))
                if self._report or self.refused:
                    break
        finally:
            self.ended.set()

    def end(self, *, truncated: bool, exit_status: int | None = None) -> RunEnd:
        """What to tell the client; `exit_status` is that of one call of a session that lives."""
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
        """A call of a session begins."""
        self._started_s = time.monotonic()

    def _hear(self, said: Mapping[str, Any]) -> None:
        if "runner" in said:
            self.runner_pid = said["runner"]
            if self.killed_by is not None:
                self.kill(self.killed_by)
        elif "refused" in said:
            self.refused = said["refused"]
        else:
            self._report = said
            self.is_clean = said["clean"]

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

"""The sandbox protocol, which behaves the same on every backend, and its errors.

SandboxError                  names the sandbox, the fault and the remedy
+-- SandboxRefused            invalid request; nothing ran
+-- SandboxTimeout            starting, resetting or moving a file took too long: close the sandbox
+-- SandboxLost               the sandbox is gone, the result unknown: the episode has no result
+-- SandboxUnavailable        this machine or cluster cannot create sandboxes; do not retry
+-- SandboxQuota              no sandbox can be created now; retry later

A program that fails, is killed by a limit or takes too long is not an error: its `ExecResult` says
so, and the policy reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from espalier.records import EspalierError
from sandboxd.wire import Killer, Limits


class SandboxError(EspalierError):
    """Base class of sandbox errors."""


class SandboxRefused(SandboxError):
    """The request is invalid; nothing ran.

    Attributes:
        status: HTTP status: 404 no such file, 409 conflict or busy, 413 too large, 507 no space
            left, else 400.
    """

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class SandboxTimeout(SandboxError):
    """The sandbox itself, not a program in it, did not answer in time."""


class SandboxLost(SandboxError):
    """The sandbox ended or is unreachable; a command may have run, so never retry it.

    Attributes:
        by_program: whether a program was running and nothing outside explains the loss.
    """

    def __init__(self, message: str, *, by_program: bool = False) -> None:
        super().__init__(message)
        self.by_program = by_program


class SandboxUnavailable(SandboxError):
    """This machine or cluster cannot create sandboxes."""


class SandboxQuota(SandboxError):
    """The quota of sandboxes is used up; retry later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    r"""How a program ended, and its output.

    A program that printed "a" and was killed by its time limit:

        stdout  b"a\n"      exit_status  None     signal     9
        stderr  b""        killed_by    "wall_time"        truncated  False

    Attributes:
        exit_status: None if a signal ended it; 127: program not found; 126: it cannot be started.
        signal: the signal that ended it, else None.
        killed_by: the limit that killed it, else None.
        truncated: whether the output exceeded its limit and was cut.
        duration_s: seconds inside the sandbox, until all processes that it started have ended.
        cpu_s: CPU seconds of the program and of children that it waited for.
    """

    stdout: bytes
    stderr: bytes
    exit_status: int | None
    signal: int | None
    killed_by: Killer | None
    truncated: bool
    duration_s: float
    cpu_s: float
    max_rss_bytes: int

    @property
    def timed_out(self) -> bool:
        """Whether the time limit killed it."""
        return self.killed_by == "wall_time"

    @property
    def succeeded(self) -> bool:
        """Whether it exited with status 0."""
        return self.exit_status == 0 and self.killed_by is None

    @property
    def text(self) -> str:
        """Standard output, then standard error; invalid UTF-8 is replaced."""
        return (self.stdout + self.stderr).decode(errors="replace")


class Sandbox(Protocol):
    """An isolated workspace for the programs and files of one borrower.

    Every method may raise SandboxLost. All processes of a run, daemons included, end with it; only
    files and the Python session stay, until the next reset.
    """

    @property
    def name(self) -> str:
        """Name for messages and metrics."""
        ...

    @property
    def limits(self) -> Limits:
        """The highest limits, which are also the defaults of a run."""
        ...

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        limits: Limits | None = None,
    ) -> ExecResult:
        """Run a program in the workspace.

        Args:
            argv: the program, looked up in PATH, and its arguments.
            stdin: its whole standard input.
            env: variables besides PATH, HOME and LANG.
            timeout_s: replaces `limits.wall_s`.
            limits: limits of this run, none above the sandbox's (use `dataclasses.replace`).

        Raises:
            SandboxRefused: an invalid argument, or a limit above the sandbox's.
        """
        ...

    async def python(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        """Run code in the Python session, which keeps its names; prints a last expression.

        Between calls the session is stopped, with every thread and process that it started.

        If the code exits, crashes or is killed, the next call starts a new session.

        Raises:
            SandboxRefused: another call is running.
        """
        ...

    async def run_python(
        self,
        code: str,
        *,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        limits: Limits | None = None,
    ) -> ExecResult:
        """Run a script in its own interpreter, forked from a warm one that has its imports."""
        ...

    async def put(self, path: str, content: bytes) -> None:
        """Write a file atomically; missing parent folders are created.

        Raises:
            SandboxRefused: `path` leaves the workspace or follows a link, or no space is left.
        """
        ...

    async def get(self, path: str) -> bytes:
        """Read a regular file of the workspace.

        Raises:
            SandboxRefused: `path` leaves the workspace or follows a link, or the file is not
                regular or too large.
        """
        ...

    async def snapshot(self) -> str:
        """Save the files of the workspace and return a name for `reset`.

        Raises:
            SandboxRefused: a run is in progress, or the files are too large.
        """
        ...

    async def reset(self, snapshot: str | None = None) -> None:
        """End all runs and the session, empty every writable folder, restore a snapshot.

        Snapshots taken after the restored one are deleted; None restores the empty workspace.
        """
        ...

    async def close(self) -> None:
        """End the sandbox and all its processes; nothing is left when this returns."""
        ...


class Backend(Protocol):
    """Creates sandboxes of one kind."""

    @property
    def name(self) -> str:
        """The backend's name in the table of guarantees."""
        ...

    async def create(self) -> Sandbox:
        """Create a sandbox that is ready to run, with an empty workspace.

        Raises:
            SandboxUnavailable: this machine or cluster cannot create sandboxes.
            SandboxQuota: no sandbox can be created now.
            SandboxTimeout: the sandbox did not become ready in time.
            SandboxLost: the sandbox ended before it was ready.
        """
        ...

    async def close(self) -> None:
        """Release what the sandboxes share, after they are closed; `create` fails afterwards."""
        ...

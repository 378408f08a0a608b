"""The sandbox protocol: one behaviour, whichever backend stands behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sandboxd.wire import Killer, Limits

__all__ = ["Backend", "ExecResult", "Killer", "Limits", "Sandbox"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    r"""How a program ended, and what it said.

    A program that was killed by its time limit, after saying "a":

        stdout  b"a\n"      exit_status  None     signal     9
        stderr  b""        killed_by    "wall_time"        truncated  False

    Attributes:
        exit_status: None if a signal ended it; 127 no such program, 126 it could not be started.
        signal: the signal that ended it, else None.
        killed_by: which limit had it killed, None if none did.
        truncated: more was said than the output limit keeps.
        duration_s: seconds inside the sandbox, from its start to the end of all that it started.
        cpu_s: of the program and of what it waited for.
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
        """Whether it was killed because its time was up."""
        return self.killed_by == "wall_time"

    @property
    def succeeded(self) -> bool:
        """Whether it ended by itself with status 0."""
        return self.exit_status == 0 and self.killed_by is None

    @property
    def text(self) -> str:
        """Standard output, then standard error; bytes that are no UTF-8 are replaced."""
        return (self.stdout + self.stderr).decode(errors="replace")


class Sandbox(Protocol):
    """A place of its own for one borrower's programs and files; nothing in it reaches outside.

    Every method may raise SandboxLost. What a run starts ends with the run, daemons included; only
    files and the Python session stay, until the next reset.
    """

    @property
    def name(self) -> str:
        """For messages and metrics."""
        ...

    @property
    def limits(self) -> Limits:
        """Ceilings, and what holds for a run that names no limits of its own."""
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
            stdin: what it reads; then its input ends.
            env: added to PATH, HOME and LANG, which is all it has otherwise.
            timeout_s: in place of `limits.wall_s`.
            limits: for this run, none above the sandbox's own (`dataclasses.replace` them).

        Raises:
            SandboxRefused: an argument cannot be one, or a limit is above the sandbox's.
        """
        ...

    async def python(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        """Run code in the session, which keeps its names; a last expression is shown.

        A call that exits, crashes or is killed ends the session, and the next one starts a new one.

        Raises:
            SandboxRefused: another call is under way.
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
        """Run a script in an interpreter of its own, warm: it pays neither start nor imports."""
        ...

    async def put(self, path: str, content: bytes) -> None:
        """Write a file, whole or not at all; folders on the way are made.

        Raises:
            SandboxRefused: `path` leads out of the workspace or over a link, or there is no room.
        """
        ...

    async def get(self, path: str) -> bytes:
        """Read a plain file of the workspace.

        Raises:
            SandboxRefused: `path` leads out or over a link, or is no plain file, or is too long.
        """
        ...

    async def snapshot(self) -> str:
        """Keep the workspace's files as they are; the name that `reset` takes.

        Raises:
            SandboxRefused: a run is in flight, or they are too large to keep.
        """
        ...

    async def reset(self, snapshot: str | None = None) -> None:
        """End all runs and the session, empty every writable folder, put back a snapshot.

        Going back to a snapshot forgets those taken after it; None is before all of them.
        """
        ...

    async def close(self) -> None:
        """End it with all that is in it; nothing is left when this returns."""
        ...


class Backend(Protocol):
    """Makes sandboxes of one kind."""

    @property
    def name(self) -> str:
        """As in the table of guarantees."""
        ...

    async def create(self) -> Sandbox:
        """A new sandbox, ready to run; its workspace is empty.

        Raises:
            SandboxUnavailable: none can be had here.
            SandboxQuota: none can be had now.
            SandboxTimeout: it did not become ready.
            SandboxLost: it ended before it was ready.
        """
        ...

    async def close(self) -> None:
        """Give back what its sandboxes share, once they are closed; then it can make none."""
        ...

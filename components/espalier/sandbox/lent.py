"""A lent sandbox, whose programs are limited to the time its borrower's call has left."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence

from espalier.sandbox.call_time import current_call
from espalier.sandbox.protocol import ExecResult, Limits, Sandbox

_NO_TIME_LEFT = ExecResult(
    stdout=b"",
    stderr=b"",
    exit_status=None,
    signal=signal.SIGKILL,
    killed_by="wall_time",
    truncated=False,
    duration_s=0.0,
    cpu_s=0.0,
    max_rss_bytes=0,
)
"""The result of a program that was not started because its call had no time left."""


class LentSandbox:
    """A sandbox whose programs share the time limit of the environment call that runs them.

    A program that its call has no time for counts as killed by the time limit, like a slow one: the
    policy reads that as an observation, and its episode goes on (`CallTime`).
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    @property
    def name(self) -> str:
        """The sandbox's name, for messages and metrics."""
        return self._sandbox.name

    @property
    def limits(self) -> Limits:
        """The sandbox's highest limits, which are also the defaults of a run."""
        return self._sandbox.limits

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        limits: Limits | None = None,
    ) -> ExecResult:
        """Run a program within the time that the call has left."""
        return await _in_time(
            lambda wall_s: self._sandbox.exec(
                argv, stdin=stdin, env=env, timeout_s=wall_s, limits=limits
            ),
            self._wall_s(timeout_s, limits),
        )

    async def python(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        """Run code in the Python session within the time that the call has left."""
        return await _in_time(
            lambda wall_s: self._sandbox.python(code, timeout_s=wall_s),
            self._wall_s(timeout_s, None),
        )

    async def run_python(
        self,
        code: str,
        *,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        limits: Limits | None = None,
    ) -> ExecResult:
        """Run a script in its own interpreter within the time that the call has left."""
        return await _in_time(
            lambda wall_s: self._sandbox.run_python(
                code, stdin=stdin, timeout_s=wall_s, limits=limits
            ),
            self._wall_s(timeout_s, limits),
        )

    async def put(self, path: str, content: bytes) -> None:
        """Write a file of the workspace."""
        await self._sandbox.put(path, content)

    async def get(self, path: str) -> bytes:
        """Read a file of the workspace."""
        return await self._sandbox.get(path)

    async def snapshot(self) -> str:
        """Save the files of the workspace and return a name for `reset`."""
        return await self._sandbox.snapshot()

    async def reset(self, snapshot: str | None = None) -> None:
        """End all runs, empty every writable folder and restore a snapshot."""
        await self._sandbox.reset(snapshot)

    async def close(self) -> None:
        """End the sandbox and all its processes."""
        await self._sandbox.close()

    def _wall_s(self, timeout_s: float | None, limits: Limits | None) -> float:
        return (limits or self.limits).wall_s if timeout_s is None else timeout_s


async def _in_time(run: Callable[[float], Awaitable[ExecResult]], wall_s: float) -> ExecResult:
    """Run a program, within the time left of the current call if there is one."""
    call = current_call()
    if call is None:
        return await run(wall_s)
    left_s = call.programs_left_s
    if left_s <= 0:
        return _NO_TIME_LEFT
    with call.running():
        return await run(min(wall_s, left_s))

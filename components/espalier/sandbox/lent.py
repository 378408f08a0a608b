"""A lent sandbox: programs run no longer than their borrower's call has time for."""

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
"""Of a program for which nothing was left of its call's time: it was not started."""


class LentSandbox:
    """A sandbox whose programs share the time of the environment's call that runs them.

    A program that the call has no time for is killed by its wall time, as one that is slow: the
    policy reads so, and its episode goes on. See `CallTime`.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    @property
    def name(self) -> str:
        """See `Sandbox.name`."""
        return self._sandbox.name

    @property
    def limits(self) -> Limits:
        """See `Sandbox.limits`."""
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
        """See `Sandbox.exec`."""
        return await _in_time(
            lambda wall_s: self._sandbox.exec(
                argv, stdin=stdin, env=env, timeout_s=wall_s, limits=limits
            ),
            self._wall_s(timeout_s, limits),
        )

    async def python(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        """See `Sandbox.python`."""
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
        """See `Sandbox.run_python`."""
        return await _in_time(
            lambda wall_s: self._sandbox.run_python(
                code, stdin=stdin, timeout_s=wall_s, limits=limits
            ),
            self._wall_s(timeout_s, limits),
        )

    async def put(self, path: str, content: bytes) -> None:
        """See `Sandbox.put`."""
        await self._sandbox.put(path, content)

    async def get(self, path: str) -> bytes:
        """See `Sandbox.get`."""
        return await self._sandbox.get(path)

    async def snapshot(self) -> str:
        """See `Sandbox.snapshot`."""
        return await self._sandbox.snapshot()

    async def reset(self, snapshot: str | None = None) -> None:
        """See `Sandbox.reset`."""
        await self._sandbox.reset(snapshot)

    async def close(self) -> None:
        """See `Sandbox.close`."""
        await self._sandbox.close()

    def _wall_s(self, timeout_s: float | None, limits: Limits | None) -> float:
        return (limits or self.limits).wall_s if timeout_s is None else timeout_s


async def _in_time(run: Callable[[float], Awaitable[ExecResult]], wall_s: float) -> ExecResult:
    """Run a program within what is left of its call's time, where a call runs it."""
    call = current_call()
    if call is None:
        return await run(wall_s)
    left_s = call.programs_left_s
    if left_s <= 0:
        return _NO_TIME_LEFT
    with call.running():
        return await run(min(wall_s, left_s))

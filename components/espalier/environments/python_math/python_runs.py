"""How the programs of one episode run: each in an interpreter of its own, or all in one session."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from espalier.environments.contract import EnvironmentLostError
from espalier.sandbox import (
    ExecResult,
    Sandbox,
    SandboxError,
    SandboxRefused,
    SandboxUnavailable,
)
from espalier.sandbox.choice import PoolThread


class PythonRuns(Protocol):
    """The programs of one episode."""

    async def run(self, code: str) -> ExecResult:
        """Run one program, in a sandbox.

        Raises:
            EnvironmentLostError: the sandbox is gone, or none could be had.
            SandboxRefused: the program cannot be one.
            SandboxUnavailable: there are no sandboxes at all.
        """
        ...

    def end(self) -> None:
        """The episode is over."""
        ...


class SeparateRuns:
    """Each program borrows a sandbox, and finds nothing of the one before it."""

    def __init__(self, sandboxes: PoolThread, timeout_s: float) -> None:
        self._sandboxes = sandboxes
        self._timeout_s = timeout_s

    async def run(self, code: str) -> ExecResult:
        """See `PythonRuns`."""
        return await self._sandboxes.run(self._borrowed(code))

    def end(self) -> None:
        """See `PythonRuns`; nothing is held between two programs."""

    async def _borrowed(self, code: str) -> ExecResult:
        async with _losses(), self._sandboxes.pool.claim() as sandbox:
            return await sandbox.run_python(code, timeout_s=self._timeout_s)


class SessionRuns:
    """The first program borrows a sandbox, which is kept until the episode is over."""

    def __init__(self, sandboxes: PoolThread, timeout_s: float) -> None:
        self._sandboxes = sandboxes
        self._timeout_s = timeout_s
        self._held = AsyncExitStack()
        self._sandbox: Sandbox | None = None

    async def run(self, code: str) -> ExecResult:
        """See `PythonRuns`."""
        return await self._sandboxes.run(self._in_session(code))

    def end(self) -> None:
        """See `PythonRuns`."""
        if self._sandbox is not None:
            self._sandbox = None
            self._sandboxes.post(self._held.aclose())

    async def _in_session(self, code: str) -> ExecResult:
        async with _losses():
            if self._sandbox is None:
                claim = self._sandboxes.pool.claim()
                self._sandbox = await self._held.enter_async_context(claim)
            try:
                return await self._sandbox.python(code, timeout_s=self._timeout_s)
            except SandboxRefused:
                raise
            except BaseException:
                # whoever waited has given up, or it is lost: the pool hears why, and takes it back
                self._sandbox = None
                await self._held.__aexit__(*sys.exc_info())
                raise


@asynccontextmanager
async def _losses() -> AsyncGenerator[None]:
    """Turn what ends one episode into the one error that says so."""
    try:
        yield
    except (SandboxRefused, SandboxUnavailable):
        raise
    except SandboxError as error:
        raise EnvironmentLostError(f"sandbox: {error}") from error

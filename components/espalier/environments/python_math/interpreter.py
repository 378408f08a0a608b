"""The tool `python`: runs the programs of an episode in sandboxes, and shows what they printed."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from espalier.environments.contract import EnvironmentLostError
from espalier.environments.tools import Tool, ToolOutput
from espalier.sandbox import (
    ExecResult,
    Sandbox,
    SandboxError,
    SandboxRefused,
    SandboxUnavailable,
)
from espalier.sandbox.choice import PoolThread


class PythonRuns(Protocol):
    """Runs the programs of one episode."""

    async def run(self, code: str) -> ExecResult:
        """Run one program, in a sandbox.

        Raises:
            EnvironmentLostError: the sandbox is gone, or none could be had.
            SandboxRefused: the program is refused, for its size or its bytes.
            SandboxUnavailable: there are no sandboxes at all.
        """
        ...

    def end(self) -> None:
        """The episode is over."""
        ...


class SeparateRuns:
    """Runs each program in a fresh interpreter."""

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
    """Runs all programs of an episode in one interpreter session; names persist."""

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
                # cancelled, or the sandbox is lost: return it to the pool with the reason
                self._sandbox = None
                await self._held.__aexit__(*sys.exc_info())
                raise


@asynccontextmanager
async def _losses() -> AsyncGenerator[None]:
    """Raise EnvironmentLostError for a sandbox error that ends one episode."""
    try:
        yield
    except (SandboxRefused, SandboxUnavailable):
        raise
    except SandboxError as error:
        raise EnvironmentLostError(f"sandbox: {error}") from error


NOTHING_PRINTED = "(nothing printed)"
_CUT = " ... "


def python_tool(runs: Callable[[], PythonRuns], max_characters: int) -> Tool:
    """The tool over the programs of one episode.

    Args:
        runs: called when the first program runs.
        max_characters: more than this of a program's output is cut out of its middle.
    """

    async def python(code: str) -> ToolOutput:
        """Run a complete Python program and read what it prints."""
        try:
            result = await runs().run(code)
        except SandboxRefused as refused:
            return ToolOutput(f"Refused: {refused}", succeeded=False)
        return ToolOutput(observed(result, max_characters), succeeded=result.succeeded)

    return Tool(python, call_tag="code", result_tag="interpreter", takes_code=True)


def observed(result: ExecResult, max_characters: int) -> str:
    """What the policy reads of a program: its output, and the limit that ended it."""
    text = result.text.strip()
    if result.timed_out:
        text += "\nTimeoutError: the program took too long"
    elif result.killed_by is not None:
        text += f"\nKilled: limit of {result.killed_by.replace('_', ' ')}"
    return shortened(text.strip() or NOTHING_PRINTED, max_characters)


def shortened(text: str, max_characters: int) -> str:
    """`text` cut in its middle to `max_characters`: a traceback names its error at the end."""
    if len(text) <= max_characters:
        return text
    kept = max_characters - len(_CUT)
    return text[: kept // 2] + _CUT + text[len(text) - (kept - kept // 2) :]

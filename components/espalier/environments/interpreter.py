"""The tool `python`: runs the programs of an episode in sandboxes, and shows their output."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Protocol

from espalier.environments.contract import sandbox_losses
from espalier.environments.held_sandbox import HeldSandbox
from espalier.environments.tools import Tool, ToolOutput
from espalier.sandbox import ExecResult, Sandbox, SandboxRefused
from espalier.sandbox.choice import PoolThread


class PythonRuns(Protocol):
    """Runs the programs of one episode."""

    async def run(self, code: str) -> ExecResult:
        """Run one program in a sandbox.

        Raises:
            EnvironmentLostError: the sandbox was lost for an outside cause, or none was free.
            ProgramBrokeSandboxError: the program ended its sandbox.
            SandboxRefused: the program is too large or not valid text.
            SandboxUnavailable: no sandboxes can be created.
        """
        ...

    async def run_afresh(self, code: str) -> ExecResult:
        """Run one program in an interpreter that shares nothing with those of `run`.

        It has its own hash seed, addresses and working folder; interpreters forked from one warm
        interpreter share the first two. Errors are those of `run`.
        """
        ...

    def end(self) -> None:
        """End the episode and release what it holds."""
        ...


class SeparateRuns:
    """Runs each program in a fresh interpreter, in a sandbox that was reset.

    Args:
        sandboxes: the pool to borrow from.
        timeout_s: time limit of each program.
        judging: whether its programs judge an answer (`PoolThread.claim`).
    """

    def __init__(self, sandboxes: PoolThread, timeout_s: float, *, judging: bool = False) -> None:
        self._sandboxes = sandboxes
        self._timeout_s = timeout_s
        self._judging = judging

    async def run(self, code: str) -> ExecResult:
        """Run one program in a borrowed sandbox."""
        return await self._sandboxes.run(self._run(code))

    async def run_afresh(self, code: str) -> ExecResult:
        """Run one program in a newly started interpreter of a borrowed sandbox."""
        return await self._sandboxes.run(self._run_afresh(code))

    def end(self) -> None:
        """Do nothing: no sandbox is held between two programs."""

    async def _run(self, code: str) -> ExecResult:
        with sandbox_losses():
            async with self._sandboxes.claim(judging=self._judging) as sandbox:
                return await sandbox.run_python(code, timeout_s=self._timeout_s)

    async def _run_afresh(self, code: str) -> ExecResult:
        with sandbox_losses():
            async with self._sandboxes.claim(judging=self._judging) as sandbox:
                return await _started(sandbox, code, self._timeout_s)


class SessionRuns:
    """Runs all programs of an episode in one interpreter session; names persist."""

    def __init__(self, sandboxes: PoolThread, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._held = HeldSandbox(sandboxes)

    async def run(self, code: str) -> ExecResult:
        """Run one program in the session."""
        return await self._held.use(
            lambda sandbox: sandbox.python(code, timeout_s=self._timeout_s),
            keep_at=(SandboxRefused,),
        )

    async def run_afresh(self, code: str) -> ExecResult:
        """Run one program that sees the session's files, but not its names."""
        return await self._held.use(
            lambda sandbox: _started(sandbox, code, self._timeout_s), keep_at=(SandboxRefused,)
        )

    def end(self) -> None:
        """Give the sandbox back."""
        self._held.end()


_IN_A_FOLDER_OF_ITS_OWN = 'mkdir "$0" && cd "$0" && exec python3 -'
_HASH_SEEDS = 2**32


async def _started(sandbox: Sandbox, code: str, timeout_s: float) -> ExecResult:
    """Run a program, passed on standard input, in a newly started interpreter."""
    return await sandbox.exec(
        ["sh", "-c", _IN_A_FOLDER_OF_ITS_OWN, f"run-{secrets.token_hex(8)}"],
        stdin=code.encode(errors="surrogatepass"),
        env={"PYTHONHASHSEED": str(secrets.randbelow(_HASH_SEEDS))},
        timeout_s=timeout_s,
    )


NOTHING_PRINTED = "(nothing printed)"
_CUT = " ... "


def python_tool(runs: Callable[[], PythonRuns], max_characters: int) -> Tool:
    """Return the tool `python` for one episode.

    Args:
        runs: returns the runner of programs; called when the first program runs.
        max_characters: longer output of a program is cut in its middle.
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
    """Return what the policy reads: the program's output, and the limit that ended it."""
    text = result.text.strip()
    if result.timed_out:
        text += "\nTimeoutError: the program took too long"
    elif result.killed_by is not None:
        text += f"\nKilled: limit of {result.killed_by.replace('_', ' ')}"
    return shortened(text.strip() or NOTHING_PRINTED, max_characters)


def shortened(text: str, max_characters: int) -> str:
    """Return `text` cut in its middle to `max_characters`: a traceback ends with the error."""
    if len(text) <= max_characters:
        return text
    kept = max_characters - len(_CUT)
    return text[: kept // 2] + _CUT + text[len(text) - (kept - kept // 2) :]

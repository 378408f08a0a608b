"""The tool `python`: runs the programs of an episode in sandboxes, and shows what they printed."""

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
        """Run one program, in a sandbox.

        Raises:
            EnvironmentLostError: the sandbox was lost from outside, or none could be had.
            ProgramBrokeSandboxError: the program ended its sandbox.
            SandboxRefused: the program is refused, for its size or its bytes.
            SandboxUnavailable: there are no sandboxes at all.
        """
        ...

    async def run_afresh(self, code: str) -> ExecResult:
        """Run one program in an interpreter that shares nothing with those of `run`.

        It has a hash seed, addresses and a working folder of its own; forks of one warm interpreter
        have the first two in common. Errors as of `run`.
        """
        ...

    def end(self) -> None:
        """The episode is over."""
        ...


class SeparateRuns:
    """Runs each program in a fresh interpreter, and a sandbox that was reset.

    Args:
        sandboxes: to borrow from.
        timeout_s: limit of each program.
        judging: whether its programs judge an answer, see `PoolThread.claim`.
    """

    def __init__(self, sandboxes: PoolThread, timeout_s: float, *, judging: bool = False) -> None:
        self._sandboxes = sandboxes
        self._timeout_s = timeout_s
        self._judging = judging

    async def run(self, code: str) -> ExecResult:
        """See `PythonRuns`."""
        return await self._sandboxes.run(self._run(code))

    async def run_afresh(self, code: str) -> ExecResult:
        """See `PythonRuns`."""
        return await self._sandboxes.run(self._run_afresh(code))

    def end(self) -> None:
        """See `PythonRuns`; nothing is held between two programs."""

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
        """See `PythonRuns`."""
        return await self._held.use(
            lambda sandbox: sandbox.python(code, timeout_s=self._timeout_s),
            keep_at=(SandboxRefused,),
        )

    async def run_afresh(self, code: str) -> ExecResult:
        """See `PythonRuns`; the program finds the files of the session, and not its names."""
        return await self._held.use(
            lambda sandbox: _started(sandbox, code, self._timeout_s), keep_at=(SandboxRefused,)
        )

    def end(self) -> None:
        """See `PythonRuns`."""
        self._held.end()


_IN_A_FOLDER_OF_ITS_OWN = 'mkdir "$0" && cd "$0" && exec python3 -'
_HASH_SEEDS = 2**32


async def _started(sandbox: Sandbox, code: str, timeout_s: float) -> ExecResult:
    """Run a program, on standard input, in an interpreter that is started for it."""
    return await sandbox.exec(
        ["sh", "-c", _IN_A_FOLDER_OF_ITS_OWN, f"run-{secrets.token_hex(8)}"],
        stdin=code.encode(errors="surrogatepass"),
        env={"PYTHONHASHSEED": str(secrets.randbelow(_HASH_SEEDS))},
        timeout_s=timeout_s,
    )


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

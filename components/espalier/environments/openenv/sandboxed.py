"""A server of the user's in the episode's sandbox, and the way to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from espalier.environments.contract import EnvironmentLostError, sandbox_losses
from espalier.environments.openenv import inside
from espalier.environments.openenv.config import ServerProgram
from espalier.environments.server_sandbox import ServerSandbox
from espalier.sandbox.choice import PoolThread
from espalier.sandbox.protocol import SandboxLost

_NAME = "server"


class SandboxedLine:
    """One session on a server that was started for it; the server ends with the session."""

    def __init__(self, sandboxes: PoolThread, program: ServerProgram, packed: bytes) -> None:
        self._sandboxes = sandboxes
        self._program = program
        self._packed = packed
        self._servers = ServerSandbox(sandboxes, inside.__file__)

    async def open(self) -> None:
        """Borrow a sandbox, however long that takes, and start the server.

        Raises:
            EnvironmentLostError: it does not start, listens not in time, or the sandbox is lost.
        """
        program, within_s = self._program, self._program.start_timeout_s
        self._servers = ServerSandbox(self._sandboxes, inside.__file__)
        found = await self._servers.start(
            _NAME,
            (program.command, program.variables, program.port),
            self._packed,
            within_s,
            by_program=False,
        )
        if "fault" not in found:
            found = await self._call("connect", within_s=within_s)
        if "fault" in found:
            self.abort()
            raise EnvironmentLostError(f"environment.server: {_why(found)}")

    async def exchange(self, text: str, within_s: float, *, by_policy: bool) -> str:
        """See `Line`.

        Raises:
            EnvironmentLostError: the sandbox is lost, or the server failed at no message of the
                policy.
            ProgramBrokeSandboxError: it ended, or did not answer, at one.
        """
        found = await self._call("ask", text, within_s=within_s, by_program=by_policy)
        return self._answer(found, by_program=by_policy)

    async def get(self, path: str, within_s: float) -> str:
        """What the server answers to a GET; errors as of `exchange`."""
        found = await self._call("get", path, within_s=within_s)
        return self._answer(found, by_program=False)

    async def _call(
        self, method: str, *arguments: object, within_s: float, by_program: bool = False
    ) -> dict[str, Any]:
        """What a method of the server's says, whose last argument is the time that it has."""
        return await self._servers.call(
            _NAME, method, *arguments, within_s, within_s=within_s, by_program=by_program
        )

    def _answer(self, found: Mapping[str, Any], *, by_program: bool) -> str:
        if (answer := found.get("answer")) is not None:
            return str(answer)
        self.abort()
        with sandbox_losses():
            raise SandboxLost(f"environment.server: {_why(found)}", by_program=by_program)

    async def close(self) -> None:
        """End the server, and give the sandbox back."""
        self.abort()

    def abort(self) -> None:
        """As `close`; nothing is waited for."""
        self._servers.end()


def _why(found: Mapping[str, Any]) -> str:
    """Why a server did not do what was asked, and its last words."""
    lines = [line.strip() for line in str(found.get("said", "")).splitlines() if line.strip()]
    status = found.get("status")
    ended = "" if status is None else f" (it ended with status {status})"
    said = f": {'; '.join(lines[-2:])}" if lines else ""
    return f"{found.get('fault')}{ended}{said}"

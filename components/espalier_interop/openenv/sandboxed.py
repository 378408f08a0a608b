"""A server of the user's in the episode's sandbox, and the connection to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from espalier.environments.contract import EnvironmentLostError, sandbox_losses
from espalier.environments.server_sandbox import ServerSandbox
from espalier.sandbox.choice import PoolThread
from espalier.sandbox.protocol import SandboxLost
from espalier_interop.openenv import inside
from espalier_interop.openenv.config import ServerProgram

_NAME = "server"


class SandboxedLine:
    """One session on a server that is started for it and ends with it."""

    def __init__(self, sandboxes: PoolThread, program: ServerProgram, packed: bytes) -> None:
        self._sandboxes = sandboxes
        self._program = program
        self._packed = packed
        self._servers = ServerSandbox(sandboxes, inside.__file__)

    async def open(self) -> None:
        """Borrow a sandbox, however long that takes, and start the server.

        Raises:
            EnvironmentLostError: the server does not start in time, or the sandbox is lost.
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
        """Send a message and return the next one.

        Raises:
            EnvironmentLostError: the sandbox is lost, or the server failed without a message of
                the policy.
            ProgramBrokeSandboxError: the server ended or timed out at a message of the policy.
        """
        found = await self._call("ask", text, within_s=within_s, by_program=by_policy)
        return self._answer(found, by_program=by_policy)

    async def get(self, path: str, within_s: float) -> str:
        """Return the answer to a GET request; errors are those of `exchange`."""
        found = await self._call("get", path, within_s=within_s)
        return self._answer(found, by_program=False)

    async def _call(
        self, method: str, *arguments: object, within_s: float, by_program: bool = False
    ) -> dict[str, Any]:
        """Call a method of the server in the sandbox, with its time limit as last argument."""
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
        """End the server without waiting."""
        self._servers.end()


def _why(found: Mapping[str, Any]) -> str:
    """Return why a request failed, with the end of the server's output."""
    lines = [line.strip() for line in str(found.get("said", "")).splitlines() if line.strip()]
    status = found.get("status")
    ended = "" if status is None else f" (it ended with status {status})"
    said = f": {'; '.join(lines[-2:])}" if lines else ""
    return f"{found.get('fault')}{ended}{said}"

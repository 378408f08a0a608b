"""A server of the user's in the episode's sandbox, and the way to it."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from espalier.environments.contract import EnvironmentLostError, sandbox_losses
from espalier.environments.mcp.inside import read_object
from espalier.environments.openenv import inside
from espalier.environments.openenv.config import ServerProgram
from espalier.sandbox import Sandbox
from espalier.sandbox.choice import PoolThread
from espalier.sandbox.protocol import SandboxLost

_MARGIN_S = 5.0
"""Beyond a deadline inside the sandbox, for the way there and back."""
_SOURCE = Path(inside.__file__)
_START = """
import sys; sys.path.insert(0, "")
import json, inside
try:
    server = inside.Server(*json.loads({0!r}))
    print(inside.told(server.connect({1!r})))
except (OSError, ValueError, inside.tarfile.TarError) as error:
    print(inside.told({{"fault": str(error)}}))
"""


class SandboxedLine:
    """One session on a server that was started for it; the server ends with the session.

    A session of the sandbox stands still between two messages, and the server with it.
    """

    def __init__(self, sandboxes: PoolThread, program: ServerProgram, packed: bytes) -> None:
        self._sandboxes = sandboxes
        self._program = program
        self._packed = packed
        self._held = AsyncExitStack()
        self._sandbox: Sandbox | None = None

    async def open(self) -> None:
        """Borrow a sandbox, however long that takes, and start the server.

        Raises:
            EnvironmentLostError: it does not start, listens not in time, or the sandbox is lost.
        """
        found = await self._told(self._started(), by_program=False)
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
        asked = json.dumps([text, within_s])
        code = f"print(inside.told(server.ask(*json.loads({asked!r}))))"
        return await self._answer(code, within_s, by_program=by_policy)

    async def get(self, path: str, within_s: float) -> str:
        """What the server answers to a GET; errors as of `exchange`."""
        code = f"print(inside.told(server.get({path!r}, {within_s!r})))"
        return await self._answer(code, within_s, by_program=False)

    async def _answer(self, code: str, within_s: float, *, by_program: bool) -> str:
        found = await self._told(self._run(code, within_s), by_program=by_program)
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
        if self._sandbox is not None:
            self._sandbox = None
            self._sandboxes.post(self._held.aclose())

    async def _told(
        self, work: Coroutine[Any, Any, bytes], *, by_program: bool
    ) -> Mapping[str, Any]:
        with sandbox_losses():
            written = await self._sandboxes.run(work)
            if (found := read_object(written)) is None:
                # a server is a child of the session, and can write where that prints
                self.abort()
                raise SandboxLost("the server spoiled what was said", by_program=by_program)
        return found

    async def _started(self) -> bytes:
        program = self._program
        self._held = AsyncExitStack()
        sandbox = await self._held.enter_async_context(self._sandboxes.claim())
        self._sandbox = sandbox
        async with self._given_back():
            await sandbox.put("inside.py", _SOURCE.read_bytes())
            if self._packed:
                await sandbox.put("server.tar.gz", self._packed)
        told = json.dumps([list(program.command), program.variables, program.port])
        within_s = program.start_timeout_s
        return await self._run(_START.format(told, within_s), within_s)

    async def _run(self, code: str, within_s: float) -> bytes:
        sandbox = self._sandbox
        if sandbox is None:
            raise SandboxLost("the server of this episode was ended")
        async with self._given_back():
            result = await sandbox.python(code, timeout_s=within_s + _MARGIN_S)
            if not result.succeeded or result.truncated:
                # inside.py fails at nothing that is asked: a limit was exceeded
                said = result.text[-500:].strip()
                raise SandboxLost(f"{sandbox.name}: the server does not answer: {said}")
            if (read_object(result.stdout) or {}).get("file") == inside.LONG_ANSWER:
                return await sandbox.get(inside.LONG_ANSWER)
            return result.stdout

    @asynccontextmanager
    async def _given_back(self) -> AsyncGenerator[None]:
        """Return the sandbox to the pool, with the reason, if the block is cancelled or fails."""
        try:
            yield
        except BaseException:
            self._sandbox = None
            await self._held.__aexit__(*sys.exc_info())
            raise


def _why(found: Mapping[str, Any]) -> str:
    """Why a server did not do what was asked, and its last words."""
    lines = [line.strip() for line in str(found.get("said", "")).splitlines() if line.strip()]
    status = found.get("status")
    ended = "" if status is None else f" (it ended with status {status})"
    said = f": {'; '.join(lines[-2:])}" if lines else ""
    return f"{found.get('fault')}{ended}{said}"

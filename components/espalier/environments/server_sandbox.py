"""Servers of the user's in the sandbox of an episode, and how they are asked there."""

from __future__ import annotations

import io
import json
import secrets
import tarfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from espalier.config import MOST_PROGRAM_S
from espalier.environments import server_process
from espalier.environments.contract import sandbox_losses
from espalier.environments.held_sandbox import HeldSandbox
from espalier.environments.joined_source import joined_source
from espalier.environments.server_process import read_object
from espalier.records import DataError
from espalier.sandbox import Sandbox, SandboxRefused
from espalier.sandbox.choice import PoolThread
from espalier.sandbox.protocol import SandboxLost
from sandboxd.wire import MAX_FILE_BYTES

MARGIN_S = 5.0
"""Beyond a deadline inside the sandbox, for the way there and back."""
MOST_WAIT_S = MOST_PROGRAM_S - MARGIN_S
"""What a server there may be waited for, at most."""
_OPENING = """
import sys; sys.path.insert(0, "")
import json, inside
servers = {}
"""


class ServerSandbox:
    """The sandbox of an episode in which its servers run; borrowed when the first one is started.

    A session of the sandbox stands still between two calls, and the servers with it: no time of
    theirs passes while the policy thinks. Once the sandbox is given back, the servers are gone.

    Args:
        sandboxes: to borrow from.
        inside: file of the family's module that runs there beside `server_process`. Its class
            `Server` is made with a name and what `start` is given, and asked by its methods.
    """

    def __init__(self, sandboxes: PoolThread, inside: str) -> None:
        source = joined_source(Path(server_process.__file__), Path(inside))
        self._inside = source.encode()
        self._held = HeldSandbox(sandboxes, self._open)
        self._is_open = False

    async def start(
        self, name: str, arguments: Sequence[object], packed: bytes, within_s: float, *,
        by_program: bool,
    ) -> dict[str, Any]:  # fmt: skip
        """Start a server; {}, or {"fault": TEXT} where it cannot be.

        Args:
            name: of the server.
            arguments: of its `Server`, plain values.
            packed: its files, see `packed_files`; empty without.
            within_s: how long that may take.
            by_program: whether it is the policy's doing where there is no place for them.

        Raises:
            EnvironmentLostError, ProgramBrokeSandboxError: see `sandbox_losses`.
        """

        async def work(sandbox: Sandbox) -> dict[str, Any]:
            if packed:
                await sandbox.put(f"{name}.tar.gz", packed)
            given = json.dumps(arguments)
            code = f"inside.started(servers, {name!r}, inside.Server, *json.loads({given!r}))"
            return await self._printed(sandbox, code, within_s, by_program=False)

        return await self._use(work, by_program=by_program)

    async def call(
        self, name: str, method: str, *arguments: object, within_s: float = 0.0, by_program: bool
    ) -> dict[str, Any]:
        """What a method of a server's `Server` returns.

        Args:
            name: of a server that was started.
            method: of its class.
            arguments: plain values.
            within_s: how long it takes at most.
            by_program: whether it is the policy's doing where nothing comes of it.

        Raises:
            EnvironmentLostError, ProgramBrokeSandboxError: see `sandbox_losses`.
        """
        code = f"servers[{name!r}].{method}(*json.loads({json.dumps(arguments)!r}))"
        return await self._use(
            lambda sandbox: self._printed(sandbox, code, within_s, by_program=by_program),
            by_program=by_program,
        )

    def end(self) -> None:
        """The episode is over: the sandbox is given back, and the servers end with it."""
        self._held.end()

    async def _use(
        self, work: Callable[[Sandbox], Awaitable[dict[str, Any]]], *, by_program: bool
    ) -> dict[str, Any]:
        async def of_our_files(sandbox: Sandbox) -> dict[str, Any]:
            try:
                return await work(sandbox)
            except SandboxRefused as refused:
                # whatever stands in their way, or fills the disk, a call put there
                lost = f"{sandbox.name}: {refused}"
                raise SandboxLost(lost, by_program=by_program) from refused

        if self._is_open and not self._held.is_held:
            with sandbox_losses():
                raise SandboxLost("the servers of this episode were ended")
        return await self._held.use(of_our_files)

    async def _open(self, sandbox: Sandbox) -> None:
        self._is_open = True
        await sandbox.put("inside.py", self._inside)
        await self._run(sandbox, _OPENING, _OPEN_S, by_program=False)

    async def _printed(
        self, sandbox: Sandbox, code: str, within_s: float, *, by_program: bool
    ) -> dict[str, Any]:
        """The value of an expression, an object of JSON."""
        file = f"answer-{secrets.token_hex(8)}.json"  # which no server can lie in wait at
        printing = f"print(inside.told({code}, {file!r}))"
        written = await self._run(sandbox, printing, within_s, by_program=by_program)
        found = read_object(written)
        if found == {"file": file}:
            found = read_object(await sandbox.get(file))
        if found is None:
            # a server is a child of the session, and can write where that prints
            spoiled = f"{sandbox.name}: a server spoiled what was said"
            raise SandboxLost(spoiled, by_program=by_program)
        return found

    @staticmethod
    async def _run(sandbox: Sandbox, code: str, within_s: float, *, by_program: bool) -> bytes:
        result = await sandbox.python(code, timeout_s=within_s + MARGIN_S)
        if not result.succeeded or result.truncated:
            # what is ours fails at nothing that is asked: a limit was exceeded
            raise SandboxLost(
                f"{sandbox.name}: a server does not answer: {result.text[-500:].strip()}",
                by_program=by_program,
            )
        return result.stdout


_OPEN_S = 30.0
"""To import a module, on a machine that is busy."""


def require_waits(**waits_s: float) -> None:
    """Check waits for servers in sandboxes, by the keys of the profile.

    Raises:
        ValueError: one is longer than a sandbox waits.
    """
    for key, wait_s in waits_s.items():
        if wait_s > MOST_WAIT_S:
            raise ValueError(
                f"{key}={wait_s:g}: a sandbox waits at most {MOST_WAIT_S:g} s for a server"
            )


def packed_files(folder: Path) -> bytes:
    """A server's folder as a compressed archive.

    Raises:
        DataError: it cannot be read, or is larger than a sandbox takes.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no folder with the files of a server")
    written = io.BytesIO()
    try:
        with tarfile.open(fileobj=written, mode="w:gz", compresslevel=1) as archive:
            archive.add(folder, arcname=".", filter=_without_caches)
    except OSError as error:
        raise DataError(f"{folder}: the files of a server cannot be read ({error})") from error
    if len(written.getvalue()) > MAX_FILE_BYTES:
        raise DataError(
            f"{folder}: more than {MAX_FILE_BYTES} bytes when compressed. Put what is large into "
            "the image of the sandbox"
        )
    return written.getvalue()


def _without_caches(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.name.endswith("__pycache__") else member

"""The user's servers in the sandbox of an episode, and calls to them."""

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
"""Added to a deadline inside the sandbox, for the transfer of the call and its answer."""
MOST_WAIT_S = MOST_PROGRAM_S - MARGIN_S
"""Longest time that a call may wait for a server in a sandbox."""
_OPENING = """
import sys; sys.path.insert(0, "")
import json, inside
servers = {}
"""


class ServerSandbox:
    """The sandbox in which an episode's servers run; borrowed when the first server starts.

    The sandbox's session is stopped between two calls, and the servers with it: no time passes for
    them while the policy thinks. The servers end when the sandbox is given back.

    Args:
        sandboxes: the pool to borrow from.
        inside: file of the family's module that runs there beside `server_process`. Its class
            `Server` is constructed with a name and the arguments of `start`; `call` calls its
            methods.
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
        """Start a server; return {}, or {"fault": TEXT} if it cannot start.

        Args:
            name: name of the server.
            arguments: arguments of its `Server`, as plain values.
            packed: its files, from `packed_files`; may be empty.
            within_s: how long starting may take.
            by_program: whether the policy is to blame if the files do not fit.

        Raises:
            EnvironmentLostError, ProgramBrokeSandboxError: as `sandbox_losses`.
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
        """Call a method of a server's `Server` object and return its result.

        Args:
            name: name of a started server.
            method: method of its class.
            arguments: plain values.
            within_s: how long the call may take.
            by_program: whether the policy is to blame if the call fails.

        Raises:
            EnvironmentLostError, ProgramBrokeSandboxError: as `sandbox_losses`.
        """
        code = f"servers[{name!r}].{method}(*json.loads({json.dumps(arguments)!r}))"
        return await self._use(
            lambda sandbox: self._printed(sandbox, code, within_s, by_program=by_program),
            by_program=by_program,
        )

    def end(self) -> None:
        """End the episode: give the sandbox back, which ends its servers."""
        self._held.end()

    async def _use(
        self, work: Callable[[Sandbox], Awaitable[dict[str, Any]]], *, by_program: bool
    ) -> dict[str, Any]:
        async def of_our_files(sandbox: Sandbox) -> dict[str, Any]:
            try:
                return await work(sandbox)
            except SandboxRefused as refused:
                # a file in the way, or a full disk, was caused by an earlier call
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
        """Evaluate an expression in the sandbox and return its value, a JSON object."""
        file = f"answer-{secrets.token_hex(8)}.json"  # a random name, which no server can prepare
        printing = f"print(inside.told({code}, {file!r}))"
        written = await self._run(sandbox, printing, within_s, by_program=by_program)
        found = read_object(written)
        if found == {"file": file}:
            found = read_object(await sandbox.get(file))
        if found is None:
            # a server is a child of the session and can write to the session's output
            spoiled = f"{sandbox.name}: a server spoiled what was said"
            raise SandboxLost(spoiled, by_program=by_program)
        return found

    @staticmethod
    async def _run(sandbox: Sandbox, code: str, within_s: float, *, by_program: bool) -> bytes:
        result = await sandbox.python(code, timeout_s=within_s + MARGIN_S)
        if not result.succeeded or result.truncated:
            # our own code does not fail, so a limit was exceeded
            raise SandboxLost(
                f"{sandbox.name}: a server does not answer: {result.text[-500:].strip()}",
                by_program=by_program,
            )
        return result.stdout


_OPEN_S = 30.0
"""Time to import a module on a busy machine."""


def require_waits(**waits_s: float) -> None:
    """Check waiting times for servers in sandboxes, given by key of the profile.

    Raises:
        ValueError: a time is longer than a sandbox can wait.
    """
    for key, wait_s in waits_s.items():
        if wait_s > MOST_WAIT_S:
            raise ValueError(
                f"{key}={wait_s:g}: a sandbox waits at most {MOST_WAIT_S:g} s for a server"
            )


def packed_files(folder: Path) -> bytes:
    """Return a server's folder as a compressed archive.

    Raises:
        DataError: the folder cannot be read, or is larger than a sandbox accepts.
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

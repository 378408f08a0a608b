"""Sandboxes on this machine, without root and without images: bubblewrap around sandboxd."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from espalier.sandbox.bubblewrap import USER_ID, WORKSPACE, Handed, command
from espalier.sandbox.bubblewrap_process import BubblewrapProcess
from espalier.sandbox.client import SandboxClient, Token, server_settings
from espalier.sandbox.errors import SandboxLost, SandboxUnavailable
from espalier.sandbox.protocol import Limits
from espalier.sandbox.runtime import ENVIRONMENT, Mount, environment_settings, python_mounts
from espalier.sandbox.undoing import undone_on_failure

_NEEDS = "local sandboxes need Linux with bubblewrap and user namespaces, and run nothing without"
_WRITTEN = {
    "/etc/passwd": f"agent:x:{USER_ID}:{USER_ID}::{WORKSPACE}:/bin/sh\n",
    "/etc/group": f"agent:x:{USER_ID}:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    str(ENVIRONMENT / "pyvenv.cfg"): environment_settings(),
}
"""Files of a sandbox that this machine has otherwise, or not at all."""


class LocalSandbox(SandboxClient):
    """One of them."""

    def __init__(
        self, limits: Limits, token: Token, process: BubblewrapProcess, folder: Path
    ) -> None:
        super().__init__(f"local {folder.name}", limits, token, f"unix:{process.socket_path}")
        self._process = process
        self._folder = folder

    async def close(self) -> None:
        """See `Sandbox.close`."""
        await self.hang_up()
        await self._process.end()
        shutil.rmtree(self._folder, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBackend:
    """Makes sandboxes with bubblewrap.

    Attributes:
        limits: of every sandbox.
        packages: of espalier's own Python environment, for programs in the sandbox to import.
        preimport: modules that a Python run finds imported; each costs every sandbox its memory.
        start_timeout_s: until it must answer.
    """

    limits: Limits = field(default_factory=Limits)
    packages: Sequence[str] = ("numpy", "sympy", "pandas")
    preimport: Sequence[str] = ("numpy",)
    start_timeout_s: float = 30.0
    name: str = field(default="local", init=False, repr=False)

    async def create(self) -> LocalSandbox:
        """See `Backend.create`; refuses where it could not isolate, and says what is missing."""
        refuse_unsafe()
        folder = Path(tempfile.mkdtemp(prefix="espalier-sandbox-"))
        process, token = BubblewrapProcess(folder), Token()
        sandbox = LocalSandbox(self.limits, token, process, folder)
        async with undone_on_failure(sandbox.close):
            try:
                await process.start(lambda handed: self._command(folder, token, handed))
                await sandbox.wait_until_ready(self.start_timeout_s)
            except (SandboxLost, OSError) as error:
                said = process.said() or str(error)
                raise SandboxUnavailable(f"{_NEEDS}: {said}") from error
        return sandbox

    async def close(self) -> None:
        """See `Backend.close`; they share nothing."""

    def _command(self, folder: Path, token: Token, handed: Handed) -> list[str]:
        written = []
        for number, (target, content) in enumerate(_WRITTEN.items()):
            source = folder / f"file-{number}"
            source.write_text(content, encoding="utf-8")
            written.append(Mount(source, PurePosixPath(target)))
        settings = server_settings(token, self.limits, self.preimport) | {
            "SANDBOXD_LISTEN": f"fd:{handed.listener}"
        }
        return command(self.limits, [*python_mounts(self.packages), *written], settings, handed)


def refuse_unsafe() -> None:
    """Say at once what is missing, where that can be seen without trying.

    Raises:
        SandboxUnavailable: this is no Linux, or bubblewrap is not installed.
    """
    if not sys.platform.startswith("linux"):
        raise SandboxUnavailable(f"{_NEEDS}: this is {sys.platform}")
    if shutil.which("bwrap") is None:
        raise SandboxUnavailable(f"{_NEEDS}: no bwrap on PATH (Debian: apt install bubblewrap)")

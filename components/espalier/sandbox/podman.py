"""Sandboxes in podman containers, as root or rootless; no daemon, no network."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from espalier.sandbox.bubblewrap import ENVIRONMENT, MASKED_FILES, MASKED_FOLDERS
from espalier.sandbox.client import SandboxClient, Token, cleanup_on_failure, server_settings
from espalier.sandbox.protocol import Limits, SandboxLost, SandboxUnavailable

_USER = 1000
_USERS = 2000
_FIRST_USER_OF_ROOT = 0x70000000
"""First host user id if root runs podman, far above any account; otherwise subuids are used."""
_SERVER_BYTES = 256 * 2**20
"""Memory of sandboxd and its warm interpreters."""
_SERVER_PROCESSES = 32
_SHARED_MEMORY = "16m"
_DESCRIPTORS = 4096
_MASKED = (
    *("/dev/tty", "/proc/cmdline", "/proc/sys/kernel/random/boot_id", "/sys"),
    *MASKED_FILES,
    *MASKED_FOLDERS,
)
"""What would identify the machine, or show when a container last used a terminal."""
_LISTENER, _LIFELINE = 3, 4
_FREE_DESCRIPTOR = 10
_BACKLOG = 64
_OUTPUT_CHARACTERS = 800


@dataclass(frozen=True, slots=True, kw_only=True)
class PodmanBackend:
    """Creates sandboxes with podman.

    Attributes:
        image: a local image with sandboxd in /opt/sandbox; never pulled.
        limits: limits of every sandbox.
        preimport: modules imported before any Python run.
        runtime: "crun", "runc", or a path; None means podman's default.
        start_timeout_s: time within which a new sandbox must answer.
    """

    image: str
    limits: Limits = field(default_factory=Limits)
    preimport: Sequence[str] = ("numpy",)
    runtime: str | None = None
    start_timeout_s: float = 60.0
    name: str = field(default="podman", init=False, repr=False)

    async def create(self) -> PodmanSandbox:
        """Create a sandbox in a container, and wait until it answers."""
        if shutil.which("podman") is None:
            raise SandboxUnavailable("no podman on PATH (Debian: apt install podman)")
        folder, token = Path(tempfile.mkdtemp(prefix="espalier-sandbox-")), Token()
        name = f"espalier-{secrets.token_hex(6)}"
        sandbox = PodmanSandbox(name, self.limits, token, folder)
        settings = server_settings(token, self.limits, self.preimport) | {
            "SANDBOXD_LISTEN": f"fd:{_LISTENER}",
            "SANDBOXD_LIFELINE": f"fd:{_LIFELINE}",
        }
        async with cleanup_on_failure(sandbox.close):
            try:
                await sandbox.start(self.command(name, settings))
                await sandbox.wait_until_ready(self.start_timeout_s)
            except SandboxLost as error:
                output = await _output("podman", "logs", name)
                raise SandboxUnavailable(f"{name} ended at once: {output}") from error
        return sandbox

    async def close(self) -> None:
        """Do nothing: podman sandboxes share no resources."""

    def command(self, name: str, settings: Mapping[str, str]) -> list[str]:
        """Return the podman command: read-only image, no network or capabilities, own users."""
        limits = self.limits
        memory_bytes = limits.memory_bytes + 2 * limits.disk_bytes + _SERVER_BYTES
        processes = limits.processes + _SERVER_PROCESSES
        tmpfs = f"size={limits.disk_bytes},mode=1777,exec,nosuid,nodev,notmpcopyup"
        users = f"0:{_FIRST_USER_OF_ROOT if os.geteuid() == 0 else 1}:{_USERS}"
        return [
            "podman",
            *(("--runtime", self.runtime) if self.runtime else ()),
            *("run", "--detach", "--rm", "--pull=never", "--name", name, "--hostname=sandbox"),
            *("--label=espalier.sandbox", "--network=none", "--ipc=private", "--read-only"),
            *("--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges"),
            f"--security-opt=mask={':'.join(_MASKED)}",
            *(f"--user={_USER}:{_USER}", f"--uidmap={users}", f"--gidmap={users}"),
            *(f"--memory={memory_bytes}", f"--memory-swap={memory_bytes}"),
            *(f"--pids-limit={processes}", f"--ulimit=nproc={processes}"),
            f"--ulimit=nofile={_DESCRIPTORS}",
            *(f"--tmpfs=/workspace:{tmpfs}", f"--tmpfs=/tmp:{tmpfs}"),
            *(f"--shm-size={_SHARED_MEMORY}", "--workdir=/workspace", "--preserve-fds=2"),
            *(f"--env={key}={value}" for key, value in settings.items()),
            *("--entrypoint", f"{ENVIRONMENT}/bin/python", self.image, "-I", "-m", "sandboxd"),
        ]


class PodmanSandbox(SandboxClient):
    """A podman sandbox; it ends when this process dies, which closes its lifeline pipe."""

    only_programs_end_it = True

    def __init__(self, name: str, limits: Limits, token: Token, folder: Path) -> None:
        self._socket_path = folder / "socket"
        super().__init__(name, limits, token, f"unix:{self._socket_path}")
        self._folder = folder
        self._lifeline: int | None = None

    async def start(self, command: Sequence[str]) -> None:
        """Start the container and pass it the listening socket of sandboxd.

        Raises:
            SandboxUnavailable: podman failed; the message has its output.
        """
        read_end, self._lifeline = os.pipe()
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(self._socket_path))
                listener.listen(_BACKLOG)
                # conmon writes a file named oom into its working directory when memory runs out
                status = await _run_with(
                    ("env", f"--chdir={self._folder}", *command),
                    (listener.fileno(), read_end),
                    self._folder / "output",
                )
        finally:
            os.close(read_end)
        if status != 0:
            output = (self._folder / "output").read_text(encoding="utf-8", errors="replace")
            raise SandboxUnavailable(f"{self.name}: podman: {output.strip()[-_OUTPUT_CHARACTERS:]}")

    async def close(self) -> None:
        """Remove the container and its files."""
        self.mark_lost("its owner closed it")
        await self.close_connections()
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        await _output("podman", "rm", "--force", "--ignore", "--time=0", self.name)
        shutil.rmtree(self._folder, ignore_errors=True)


async def _run_with(command: Sequence[str], descriptors: Sequence[int], log: Path) -> int:
    """Run a command with `descriptors` as 3, 4, ..., where podman's --preserve-fds expects them."""
    with contextlib.ExitStack() as held:
        # first move them above the targets: DUP2 onto 3 must not close a descriptor still needed
        high = [fcntl.fcntl(d, fcntl.F_DUPFD_CLOEXEC, _FREE_DESCRIPTOR) for d in descriptors]
        for descriptor in high:
            held.callback(os.close, descriptor)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        held.callback(os.close, output)
        pid = os.posix_spawnp(
            command[0],
            list(command),
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
                *((os.POSIX_SPAWN_DUP2, old, 3 + place) for place, old in enumerate(high)),
            ],
        )
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    return os.waitstatus_to_exitcode(status)


async def _output(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return output.decode(errors="replace").strip()[-_OUTPUT_CHARACTERS:]

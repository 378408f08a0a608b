"""Sandboxes on this machine, without root and without images: bubblewrap around sandboxd."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from espalier.sandbox.bubblewrap import (
    ENVIRONMENT,
    MASKED_FILES,
    MASKED_FOLDERS,
    USER_ID,
    WORKSPACE,
    Mount,
    PassedDescriptors,
    command,
    environment_settings,
    python_mounts,
)
from espalier.sandbox.cgroups import ControlGroup, control_group
from espalier.sandbox.client import SandboxClient, Token, cleanup_on_failure, server_settings
from espalier.sandbox.protocol import Limits, SandboxLost, SandboxTimeout, SandboxUnavailable

_FIRST_FREE_USER = 0x70000000
_FREE_USERS = 0x10000
"""User ids far above any account; a sandbox started by root runs as a random one of them."""
_EVERYONE = ["0", "0", "4294967295"]
_BACKLOG = 64
_END_WITHIN_S = 10.0
_FOLLOWS_WITHIN_S = 3.0
_OUTPUT_CHARACTERS = 800
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Return codes of bubblewrap when it, or the first process, is killed."""


class BubblewrapProcess:
    """The first process of a sandbox, and bubblewrap, which waits for it outside.

    The socket is bound here and passed as a descriptor: it stops listening when the sandbox ends,
    and nothing inside can bind it again.
    """

    def __init__(self, folder: Path) -> None:
        self.socket_path = folder / "socket"
        self._stderr_path = folder / "stderr"
        self._process: subprocess.Popen[bytes] | None = None
        self._first: int | None = None
        self._ending = asyncio.Lock()

    async def start(
        self, command: Callable[[PassedDescriptors], list[str]], group: ControlGroup | None
    ) -> int:
        """Start the sandbox and return the host pid of its first process.

        Call this in a thread that outlives the sandbox: --die-with-parent is bound to the thread.

        Raises:
            SandboxLost: bubblewrap could not create the sandbox; `output` says why.
        """
        info_read, info_write = os.pipe()
        map_read, map_write = os.pipe()
        is_root = _is_root_of_the_machine()
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(self.socket_path))
                listener.listen(_BACKLOG)
                descriptors = PassedDescriptors(
                    listener=listener.fileno(),
                    information=info_write,
                    user_map=map_read if is_root else None,
                )
                self._process = self._spawn(command(descriptors), descriptors, group)
            os.close(info_write)  # else `_read_all` would never see the end of the pipe
            first_pid = self._open_pidfd(await _read_all(info_read))
            if is_root:  # bubblewrap waits for the maps until a byte comes over `map_write`
                _map_users(first_pid)
                os.write(map_write, b"\n")
        finally:
            for descriptor in (info_read, map_read, map_write):
                os.close(descriptor)
        return first_pid

    def _spawn(
        self, command: list[str], descriptors: PassedDescriptors, group: ControlGroup | None
    ) -> subprocess.Popen[bytes]:
        command, variables = (command, {}) if group is None else group.entering(command)
        passed = (descriptors.listener, descriptors.information, descriptors.user_map)
        with self._stderr_path.open("wb") as stderr:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env=os.environ | variables,
                pass_fds=[descriptor for descriptor in passed if descriptor is not None],
            )

    def _open_pidfd(self, information: bytes) -> int:
        """Open a pidfd of the first process, which stays valid if its pid is reused."""
        try:
            first_pid = json.loads(information)["child-pid"]
            self._first = os.pidfd_open(first_pid)
        except (ValueError, ProcessLookupError) as error:
            raise SandboxLost("bubblewrap created no sandbox") from error
        return first_pid

    def output(self) -> str:
        """Return the end of bubblewrap's and sandboxd's output, such as why a start failed."""
        text = self._stderr_path.read_text(encoding="utf-8", errors="replace")
        return text.strip()[-_OUTPUT_CHARACTERS:]

    async def was_killed(self) -> bool:
        """Return whether SIGKILL ended the sandbox, so that no requirement is missing."""
        if self._process is None:
            return False
        await _wait_for_exit(self._process)
        return self._process.returncode in _KILLED

    async def end(self) -> None:
        """Kill the first process, and with it its pid namespace; wait until all are gone.

        Raises:
            SandboxTimeout: the processes did not end in time.
        """
        try:
            async with asyncio.timeout(_END_WITHIN_S), self._ending:
                await self._end()
        except TimeoutError as error:
            raise SandboxTimeout(f"{self.socket_path}: did not end when killed") from error

    async def _end(self) -> None:
        if self._first is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
            await _readable(self._first)
            os.close(self._first)
            self._first = None
            if self._process is not None:
                await _wait_for_exit(self._process)
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
            self._process = None


async def _wait_for_exit(bubblewrap: subprocess.Popen[bytes]) -> None:
    """Let bubblewrap reap the first process; killing bubblewrap earlier would leave a zombie."""
    bubblewrap.send_signal(signal.SIGCONT)  # it may have been stopped
    with contextlib.suppress(subprocess.TimeoutExpired):
        await asyncio.to_thread(bubblewrap.wait, _FOLLOWS_WITHIN_S)


def _is_root_of_the_machine() -> bool:
    """Return whether this user is root outside any user namespace, which has no limits."""
    everyone = Path("/proc/self/uid_map").read_text(encoding="ascii").split() == _EVERYONE
    return os.geteuid() == 0 and everyone


async def _read_all(descriptor: int) -> bytes:
    """Read a pipe to its end, without a thread, which a stopped writer would block."""
    received = b""
    while True:
        await _readable(descriptor)
        data = os.read(descriptor, 4096)
        if not data:
            return received
        received += data


async def _readable(descriptor: int) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)


def _map_users(first_pid: int) -> None:
    """Map root for building the mounts, and an unused user id for running programs."""
    user = _FIRST_FREE_USER + secrets.randbelow(_FREE_USERS)
    for kind in ("uid_map", "gid_map"):
        lines = f"0 0 1\n{USER_ID} {user} 1\n"
        Path(f"/proc/{first_pid}/{kind}").write_text(lines, encoding="ascii")


_REQUIREMENT = (
    "local sandboxes need Linux with bubblewrap and user namespaces, and run nothing without"
)
_GENERATED_FILES = {
    "/etc/passwd": f"agent:x:{USER_ID}:{USER_ID}::{WORKSPACE}:/bin/sh\n",
    "/etc/group": f"agent:x:{USER_ID}:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    str(ENVIRONMENT / "pyvenv.cfg"): environment_settings(),
    "/proc/cmdline": "\n",
    "/proc/sys/kernel/random/boot_id": "00000000-0000-4000-8000-000000000000\n",
    "/dev/tty": "",  # the real one would show every sandbox when another last used a terminal
}
"""Path in the sandbox -> content of a file that replaces this machine's."""


class LocalSandbox(SandboxClient):
    """A bubblewrap sandbox."""

    only_programs_end_it = True

    def __init__(
        self,
        limits: Limits,
        token: Token,
        process: BubblewrapProcess,
        folder: Path,
        group: ControlGroup | None,
    ) -> None:
        super().__init__(f"local {folder.name}", limits, token, f"unix:{process.socket_path}")
        self._process = process
        self._folder = folder
        self._group = group

    async def close(self) -> None:
        """End the sandbox, all its processes and its files."""
        self.mark_lost("its owner closed it")
        await self.close_connections()
        await self._process.end()
        if self._group is not None:
            self._group.remove()
        shutil.rmtree(self._folder, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBackend:
    """Creates sandboxes with bubblewrap.

    Attributes:
        limits: limits of every sandbox.
        packages: packages of espalier's Python environment that programs may import.
        preimport: modules imported before any Python run; each costs memory in every sandbox.
        start_timeout_s: time within which a new sandbox must answer.
        links: names of folders of the workspace that get a link in the root folder.
    """

    limits: Limits = field(default_factory=Limits)
    packages: Sequence[str] = ("numpy", "sympy", "pandas")
    preimport: Sequence[str] = ("numpy",)
    start_timeout_s: float = 30.0
    links: Sequence[str] = ()
    name: str = field(default="local", init=False, repr=False)

    async def create(self) -> LocalSandbox:
        """Create a sandbox; refuse without isolation, and say what is missing."""
        refuse_unsafe()
        folder = Path(tempfile.mkdtemp(prefix="espalier-sandbox-"))
        process, token = BubblewrapProcess(folder), Token()
        group = control_group(self.limits)
        sandbox = LocalSandbox(self.limits, token, process, folder, group)
        async with cleanup_on_failure(sandbox.close):
            try:
                try:
                    async with asyncio.timeout(self.start_timeout_s):
                        await process.start(
                            lambda descriptors: self._command(folder, token, descriptors), group
                        )
                except TimeoutError as error:
                    late = f"bubblewrap made no sandbox within {self.start_timeout_s:g} s"
                    raise SandboxTimeout(f"{sandbox.name}: {late}") from error
                await sandbox.wait_until_ready(self.start_timeout_s)
            except (SandboxLost, OSError) as error:
                if await process.was_killed():
                    raise SandboxLost(f"{sandbox.name}: killed while it started") from error
                output = process.output() or str(error)
                raise SandboxUnavailable(f"{_REQUIREMENT}: {output}") from error
        return sandbox

    async def close(self) -> None:
        """Do nothing: local sandboxes share no resources."""

    def _command(self, folder: Path, token: Token, descriptors: PassedDescriptors) -> list[str]:
        written = []
        for number, (target, content) in enumerate(_GENERATED_FILES.items()):
            source = folder / f"file-{number}"
            source.write_text(content, encoding="utf-8")
            written.append(Mount(source, PurePosixPath(target)))
        settings = server_settings(token, self.limits, self.preimport) | {
            "SANDBOXD_LISTEN": f"fd:{descriptors.listener}"
        }
        # an empty file and an empty folder over what this kernel has of /proc
        file, directory = folder / "masked-file", folder / "masked-folder"
        file.touch()
        directory.mkdir()
        masks = []
        for source, masked in ((file, MASKED_FILES), (directory, MASKED_FOLDERS)):
            present = [path for path in masked if os.path.exists(path)]
            masks += [Mount(source, PurePosixPath(path)) for path in present]
        mounts = [*python_mounts(self.packages), *written, *masks]
        return command(self.limits, mounts, settings, descriptors, self.links)


def refuse_unsafe() -> None:
    """Check the requirements that can be verified without starting a sandbox.

    Raises:
        SandboxUnavailable: the machine does not run Linux, or bubblewrap is not installed.
    """
    if not sys.platform.startswith("linux"):
        raise SandboxUnavailable(f"{_REQUIREMENT}: this is {sys.platform}")
    if shutil.which("bwrap") is None:
        raise SandboxUnavailable(
            f"{_REQUIREMENT}: no bwrap on PATH (Debian: apt install bubblewrap)"
        )

"""One running bubblewrap: started with its descriptors and user map, ended with all in it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from espalier.sandbox.bubblewrap import USER_ID, Handed
from espalier.sandbox.errors import SandboxLost, SandboxTimeout

_FIRST_FREE_USER = 0x70000000
_FREE_USERS = 0x10000
"""Of this machine, far above any account: a sandbox that root starts runs as one of them."""
_EVERYONE = ["0", "0", "4294967295"]
_BACKLOG = 64
_END_WITHIN_S = 10.0
_FOLLOWS_WITHIN_S = 3.0
_SAID_CHARACTERS = 800


class BubblewrapProcess:
    """A sandbox's first process, and bubblewrap, which waits for it outside.

    The socket is bound here and handed over: where it stopped listening the sandbox has ended, and
    nothing inside can bind it again.
    """

    def __init__(self, folder: Path) -> None:
        self.socket_path = folder / "socket"
        self._stderr_path = folder / "stderr"
        self._process: subprocess.Popen[bytes] | None = None
        self._first: int | None = None

    async def start(self, command: Callable[[Handed], list[str]]) -> int:
        """Start it; the number of the sandbox's first process, as this machine counts.

        Call it in a thread that outlives the sandbox: the kernel ends it with the thread.

        Raises:
            SandboxLost: bubblewrap could not make the sandbox; `said` has why.
        """
        told, tell = os.pipe()
        released, release = os.pipe()
        is_root = _is_root_of_the_machine()
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(self.socket_path))
                listener.listen(_BACKLOG)
                handed = Handed(
                    listener=listener.fileno(),
                    information=tell,
                    user_map=released if is_root else None,
                )
                self._process = self._spawn(command(handed), handed)
            os.close(tell)
            first_pid = self._hold(await asyncio.to_thread(_read_all, told))
            if is_root:
                _map_users(first_pid)
                os.write(release, b"\n")
        finally:
            for descriptor in (told, released, release):
                os.close(descriptor)
        return first_pid

    def _spawn(self, command: list[str], handed: Handed) -> subprocess.Popen[bytes]:
        passed = (handed.listener, handed.information, handed.user_map)
        with self._stderr_path.open("wb") as stderr:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                pass_fds=[descriptor for descriptor in passed if descriptor is not None],
            )

    def _hold(self, information: bytes) -> int:
        """Keep hold of the first process, whatever its number comes to mean later."""
        try:
            first_pid = json.loads(information)["child-pid"]
            self._first = os.pidfd_open(first_pid)
        except (ValueError, ProcessLookupError) as error:
            raise SandboxLost("bubblewrap made no sandbox") from error
        return first_pid

    def said(self) -> str:
        """What bubblewrap and sandboxd wrote: the cause, where one did not start."""
        text = self._stderr_path.read_text(encoding="utf-8", errors="replace")
        return text.strip()[-_SAID_CHARACTERS:]

    async def end(self) -> None:
        """Kill the first process, and with it all others; return when none is left.

        Raises:
            SandboxTimeout: the kernel did not end them in time.
        """
        try:
            async with asyncio.timeout(_END_WITHIN_S):
                await self._end()
        except TimeoutError as error:
            raise SandboxTimeout(f"{self.socket_path}: did not end when killed") from error

    async def _end(self) -> None:
        if self._first is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
            gone = asyncio.Event()
            asyncio.get_running_loop().add_reader(self._first, gone.set)
            await gone.wait()
            asyncio.get_running_loop().remove_reader(self._first)
            os.close(self._first)
            self._first = None
            if self._process is not None:
                await _follow(self._process)
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
            self._process = None


async def _follow(bubblewrap: subprocess.Popen[bytes]) -> None:
    """It ends after the first process, which it collects; killed sooner it leaves a zombie."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        await asyncio.to_thread(bubblewrap.wait, _FOLLOWS_WITHIN_S)


def _is_root_of_the_machine() -> bool:
    """Whether processes mapped to this user would be the machine's root, whom no limit holds."""
    everyone = Path("/proc/self/uid_map").read_text(encoding="ascii").split() == _EVERYONE
    return os.geteuid() == 0 and everyone


def _read_all(descriptor: int) -> bytes:
    received = b""
    while data := os.read(descriptor, 4096):
        received += data
    return received


def _map_users(first_pid: int) -> None:
    """Root's sandboxes build their mounts as root and run as a user that this machine has not."""
    user = _FIRST_FREE_USER + secrets.randbelow(_FREE_USERS)
    for kind in ("uid_map", "gid_map"):
        lines = f"0 0 1\n{USER_ID} {user} 1\n"
        Path(f"/proc/{first_pid}/{kind}").write_text(lines, encoding="ascii")

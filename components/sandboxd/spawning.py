"""sandboxd's side of its spawners: starting them, handing them runs, starting them again."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Sequence

from sandboxd.spawner import ORDER, READY

_ENVIRONMENT = {
    "PATH": f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",  # a thread of the spawner would be lost in its forks
    "OPENBLAS_NUM_THREADS": "1",
}
_CHANNEL = 3
_RETRY_S = 0.2


class Spawner:
    """One warm interpreter; its process is replaced when it ends."""

    def __init__(self, preimport: Sequence[str]) -> None:
        self._preimport = preimport
        self._channel: socket.socket | None = None
        self._ready = asyncio.Event()
        self.pid = 0

    def start(self) -> None:
        """Start the process, without waiting until it has imported what it should."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-m", "sandboxd.spawner", str(_CHANNEL), *self._preimport],
                _ENVIRONMENT,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), _CHANNEL),
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                ],
            )
        ours.settimeout(0)
        self._channel = ours
        self._ready.clear()
        asyncio.get_running_loop().add_reader(ours, self._hear)

    async def order(self, descriptors: Sequence[int]) -> None:
        """Hand over one run, named as in `ORDER`; they stay open here."""
        if len(descriptors) > len(ORDER):
            raise ValueError(f"a run has at most {len(ORDER)} descriptors")
        await self._ready.wait()
        assert self._channel is not None
        socket.send_fds(self._channel, [b"run"], descriptors)

    async def ready(self) -> None:
        """Wait until it has imported what it should."""
        await self._ready.wait()

    def restart(self) -> None:
        """Take the place of a process that ended; tried again while no process can be had."""
        self.drop()
        try:
            self.start()
        except OSError:
            asyncio.get_running_loop().call_later(_RETRY_S, self.restart)

    def drop(self) -> None:
        """Have runs wait: this process is about to end, or has, and SIGCHLD restarts it."""
        self._ready.clear()
        if self._channel is not None:
            asyncio.get_running_loop().remove_reader(self._channel)
            self._channel.close()
            self._channel = None

    def _hear(self) -> None:
        assert self._channel is not None
        try:
            said = self._channel.recv(len(READY))
        except ConnectionResetError:
            said = b""
        if said == READY:
            self._ready.set()
        else:
            self.drop()

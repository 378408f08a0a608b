"""Creating sandboxes for a pool, preparing them, and checking that a reset leaves nothing behind.

A probe lists what a program can observe in a fresh sandbox, and again after every reset. A
difference was left by a borrower and could silently bias the rewards of the next one. Numbers that
only grow (the next process id, the next inode) may grow a little, as every borrower makes them
grow; after a larger jump, which could encode a message, the sandbox is replaced. All that the next
borrower can then learn is roughly how much earlier borrowers did; to hide even that, use each
sandbox once (`sandbox.max_uses = 1`).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from espalier.sandbox.client import cleanup_on_failure
from espalier.sandbox.protocol import (
    Backend,
    Sandbox,
    SandboxError,
    SandboxLost,
    SandboxUnavailable,
)

if TYPE_CHECKING:
    from espalier.sandbox.pool import PoolSettings

PROBE = """
import fcntl, hashlib, json, os, resource, stat, struct, sys

def files(folder):
    digest, number = hashlib.sha256(), 0
    for path, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(folders + names):
            whole = os.path.join(path, name)
            found = os.lstat(whole)
            told = [whole, found.st_mode, found.st_uid]
            if stat.S_ISLNK(found.st_mode):
                told.append(os.readlink(whole))
            elif stat.S_ISREG(found.st_mode):
                told += [found.st_size, int(found.st_mtime)]
                with open(whole, "rb") as file:
                    told.append(hashlib.file_digest(file, "sha256").hexdigest())
            digest.update(repr(told).encode())
            number += 1
    own = os.stat(folder)
    return [number, digest.hexdigest(), own.st_mode, os.listxattr(folder), flags(folder)]

def flags(folder):
    opened = os.open(folder, os.O_RDONLY)
    try:
        return struct.unpack("Q", fcntl.ioctl(opened, 0x80086601, bytes(8)))  # FS_IOC_GETFLAGS
    except OSError:
        return None
    finally:
        os.close(opened)

def terminals():
    told = []
    for path in ("/dev/pts", "/dev/pts/ptmx"):
        if os.path.isdir(path):
            os.listdir(path)  # sets its time of access, but not a second time
        if os.path.exists(path) and (found := os.stat(path)).st_uid == os.getuid():
            told.append([found.st_mode, found.st_mtime_ns, found.st_atime_ns])
    return told

def orphans():
    number = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                number += file.read().rpartition(b")")[2].split()[1] == b"1"
        except OSError:
            continue
    return number

def network():
    told = []
    for name in ("tcp", "tcp6", "udp", "udp6"):  # what waits to end as well
        for line in lines(f"/proc/net/{name}")[1:]:
            local = line.split()[1].partition(":")[0]
            if local.endswith("7F") or int(local, 16) in (0, 1 << 24):
                told.append(line.split()[1:4])
    counted = [line.split() for line in lines("/proc/net/dev") if ":" in line]
    told += [words for words in counted if words[0] == "lo:"]  # sandboxd does not use it
    if len(counted) == 1:
        told += [lines("/proc/net/snmp"), lines("/proc/net/snmp6")]
    return hashlib.sha256(repr(told).encode()).hexdigest()

def lines(path):
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []

def next_file(folder):
    try:
        made = os.open(folder, os.O_TMPFILE | os.O_RDWR)
    except OSError:
        return 0
    number = os.fstat(made).st_ino
    os.close(made)
    return number

def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()

MEMORY = (resource.RLIMIT_DATA, resource.RLIMIT_AS)  # beyond what the interpreter has now
found = {
    "variables": sorted(os.environ.items()),
    "modules": len(sys.modules),
    "orphans": orphans(),
    "mounts": digest("/proc/self/mounts"),
    "limits": [resource.getrlimit(n) for n in range(16) if n not in MEMORY],
    "folder": os.getcwd(),
    "network": network(),
    "terminals": terminals(),
    "counted": {"process": os.getpid()},
}
kinds = {words[1]: words[2] for words in map(str.split, lines("/proc/self/mounts"))}
for folder in ("/workspace", "/tmp", "/var/tmp", "/dev/shm"):
    if os.path.isdir(folder):
        found[folder] = files(folder)
        if kinds.get(folder) == "tmpfs":  # a disk numbers files as it likes
            found["counted"][folder] = next_file(folder)
print(json.dumps(found))
"""


async def probe(sandbox: Sandbox) -> Mapping[str, object]:
    """Return what a program can observe in a sandbox.

    Raises:
        SandboxLost: the probe itself failed.
    """
    result = await sandbox.run_python(PROBE)
    if not result.succeeded:
        raise SandboxLost(f"{sandbox.name}: its probe ended with {result}")
    try:
        found = json.loads(result.stdout)
    except (ValueError, RecursionError) as error:
        raise SandboxLost(f"{sandbox.name}: its probe printed {result.stdout[:200]!r}") from error
    if not isinstance(found, dict):
        raise SandboxLost(f"{sandbox.name}: its probe printed {result.stdout[:200]!r}")
    return found


_MOST_STEPS = 256
"""How far a number may grow from one borrower to the next: processes started, files made."""


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Return the names of entries that differ: signs of pollution."""
    found = [
        name
        for name in (before.keys() | after.keys()) - {"counted"}
        if before.get(name) != after.get(name)
    ]
    counts = (_counts(before), _counts(after))
    leaps = counts[0].keys() != counts[1].keys() or any(
        not 0 <= counts[1][name] - counted <= _MOST_STEPS for name, counted in counts[0].items()
    )
    return sorted([*found, *(["counted"] if leaps else [])])


def _counts(found: Mapping[str, object]) -> Mapping[str, int]:
    counted = found.get("counted", {})
    if not isinstance(counted, dict):
        return {}
    return {str(name): value for name, value in counted.items() if isinstance(value, int)}


Preparation = Callable[[Sandbox], Awaitable[None]]
"""Prepares a new sandbox for its borrowers."""


@dataclass(eq=False, slots=True)
class WarmSandbox:
    """A sandbox, and the probe's result that every reset must restore."""

    sandbox: Sandbox
    snapshot: str | None
    found: Mapping[str, object]
    uses: int = 0
    created_s: float = field(default_factory=time.monotonic)

    async def clean(self) -> list[str]:
        """Reset the sandbox and return the remaining signs of pollution.

        Raises:
            SandboxError: the reset or the probe failed.
        """
        await self.sandbox.reset(self.snapshot)
        before, self.found = self.found, await probe(self.sandbox)
        return differences(before, self.found)


async def make_warm(backend: Backend, prepare: Preparation | None) -> WarmSandbox:
    """Create, prepare and probe a sandbox.

    Raises:
        SandboxError: one of the steps failed.
    """
    sandbox = await backend.create()
    async with cleanup_on_failure(sandbox.close):
        snapshot = None
        if prepare is not None:
            await prepare(sandbox)
            snapshot = await sandbox.snapshot()
        await sandbox.reset(snapshot)
        return WarmSandbox(sandbox, snapshot, await probe(sandbox))


class Starter:
    """Creates sandboxes in parallel, and pauses after a failure.

    Args:
        make: creates one sandbox.
        settings: number of parallel creates, length of the pause.
        jitter: random number from 0 to 1 for a pause, so that pools of a cluster do not retry in
            step.
        on_end: called with each sandbox, with the error, or with None when a pause ends.
    """

    def __init__(
        self,
        make: Callable[[], Awaitable[WarmSandbox]],
        settings: PoolSettings,
        *,
        jitter: Callable[[], float],
        on_end: Callable[[WarmSandbox | SandboxError | None], None],
    ) -> None:
        self.failure: SandboxError | None = None
        self._has_made_one = False
        self._make = make
        self._settings = settings
        self._jitter = jitter
        self._on_end = on_end
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures_in_row = 0
        self._pause: asyncio.TimerHandle | None = None

    @property
    def in_flight(self) -> int:
        """Number of creates in progress."""
        return len(self._tasks)

    @property
    def is_unavailable(self) -> bool:
        """Whether the backend can never create a sandbox; False once it has created one."""
        return isinstance(self.failure, SandboxUnavailable) and not self._has_made_one

    def start(self, number: int) -> None:
        """Start up to `number` creates, as many as are allowed now."""
        if self._pause is not None or self.is_unavailable:
            return
        most = 1 if self._failures_in_row else self._settings.max_starting
        for _ in range(min(number, most - self.in_flight)):
            task = asyncio.create_task(self._create())
            self._tasks.add(task)

    async def close(self) -> None:
        """Start no more, and wait for creates in progress: an aborted one could leave a pod."""
        if self._pause is not None:
            self._pause.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _create(self) -> None:
        ended: WarmSandbox | SandboxError
        current = asyncio.current_task()
        assert current is not None
        try:
            ended = await self._make()
        except SandboxError as error:
            ended = self.failure = error
            self._failures_in_row += 1
            if self._pause is None:
                # it doubles with each failure, times a jitter of 50 to 100 %
                longest = self._settings.backoff_s * 2.0 ** (self._failures_in_row - 1)
                longest_s = min(longest, self._settings.longest_backoff_s)
                pause_s = longest_s * (1 + self._jitter()) / 2
                self._pause = asyncio.get_running_loop().call_later(pause_s, self._end_pause)
        else:
            self.failure, self._failures_in_row = None, 0
            self._has_made_one = True
        finally:
            self._tasks.remove(current)
        self._on_end(ended)

    def _end_pause(self) -> None:
        self._pause = None
        self._on_end(None)

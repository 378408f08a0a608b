"""Something that runs in a sandbox, and how it looks from outside."""

import asyncio
import os
import signal
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

_LOOK = """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            print(file.read().rstrip("\\0").replace("\\0", " "))
    except OSError:
        pass
"""


@dataclass
class Running:
    """A program that runs in a sandbox, known by an argument that no other has."""

    sandbox: object
    task: asyncio.Task
    mark: str

    def namespace(self):
        """The process namespace of its sandbox, as this machine has it."""
        for pid, namespace in _namespaces():
            if _words(pid)[:2] == [b"sleep", self.mark.encode()]:
                return namespace
        raise AssertionError(f"sleep {self.mark} does not run on this machine")

    async def kill_server(self):
        """End the sandbox's process 1, or its pod, behind its back."""
        if hasattr(self.sandbox, "cluster"):
            await self.sandbox.cluster.delete(self.sandbox.name)
        else:
            os.kill(members(self.namespace())[0], signal.SIGKILL)


@asynccontextmanager
async def something_running(sandbox):
    """A program runs meanwhile, for ten seconds at most."""
    mark = f"10.{uuid.uuid4().int % 10**12:012d}"
    task = asyncio.create_task(sandbox.exec(["sleep", mark]))
    async with asyncio.timeout(10):
        while f"sleep {mark}" not in await processes(sandbox):
            await asyncio.sleep(0.02)
    try:
        yield Running(sandbox, task, mark)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def processes(sandbox):
    """Command lines in a sandbox, as a program in it sees them."""
    seen = await sandbox.run_python(_LOOK)
    return seen.stdout.decode().splitlines()


def members(namespace):
    """Processes in a process namespace as this machine counts, the first one first."""
    return sorted(pid for pid, found in _namespaces() if found == namespace)


def _words(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _namespaces():
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            yield int(folder.name), (folder / "ns" / "pid").readlink()
        except OSError:
            continue

"""Sandboxes that are told what to do, for the logic around them."""

import asyncio
import json
from collections import deque

from espalier.sandbox import ExecResult, Limits, SandboxLost

ENDED = {
    "stderr": b"",
    "exit_status": 0,
    "signal": None,
    "killed_by": None,
    "truncated": False,
    "duration_s": 0.0,
    "cpu_s": 0.0,
    "max_rss_bytes": 0,
}


class ScriptedSandbox:
    """Keeps files, and what a borrower may leave in it in spite of a reset."""

    def __init__(self, name):
        self.name = name
        self.limits = Limits()
        self.files = {}
        self.snapshots = {}
        self.stuck = {}
        self.resets = 0
        self.is_closed = self.is_lost = False

    async def exec(self, argv, *, stdin=b"", env=None, timeout_s=None, limits=None):
        self._here()
        return ExecResult(stdout=" ".join(argv).encode(), **ENDED)

    async def python(self, code, *, timeout_s=None):
        return await self.exec(["python"])

    async def run_python(self, code, *, stdin=b"", timeout_s=None, limits=None):
        self._here()
        found = {"files": sorted(self.files), **self.stuck}
        return ExecResult(stdout=json.dumps(found).encode(), **ENDED)

    async def put(self, path, content):
        self._here()
        self.files[path] = content

    async def get(self, path):
        self._here()
        return self.files[path]

    async def snapshot(self):
        self.snapshots["kept"] = dict(self.files)
        return "kept"

    async def reset(self, snapshot=None):
        self._here()
        self.resets += 1
        self.files = dict(self.snapshots[snapshot]) if snapshot else {}

    async def close(self):
        self.is_closed = True

    def _here(self):
        if self.is_lost or self.is_closed:
            raise SandboxLost(f"{self.name}: gone")


class ScriptedBackend:
    """Creates sandboxes; `script` has what the next creates end in, and how long they take."""

    name = "scripted"

    def __init__(self, script=(), *, create_s=0.0):
        self.script = deque(script)
        self.create_s = create_s
        self.made = []
        self.starts_s = []
        self.creating = self.most_creating = 0

    async def create(self):
        self.starts_s.append(asyncio.get_running_loop().time())
        self.creating += 1
        self.most_creating = max(self.most_creating, self.creating)
        try:
            await asyncio.sleep(self.create_s)
            if self.script and (ending := self.script.popleft()) is not None:
                raise ending
        finally:
            self.creating -= 1
        self.made.append(ScriptedSandbox(f"scripted-{len(self.made)}"))
        return self.made[-1]

    async def close(self):
        """Nothing is shared."""

    @property
    def alive(self):
        return [sandbox for sandbox in self.made if not sandbox.is_closed]

"""One sandbox of a pool: made ready once, and brought back to that after every use."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from espalier.sandbox.canary import differences, probe
from espalier.sandbox.protocol import Backend, Sandbox
from espalier.sandbox.undoing import undone_on_failure

Preparation = Callable[[Sandbox], Awaitable[None]]
"""Puts a new sandbox into the state that every borrower finds."""


@dataclass(eq=False, slots=True)
class WarmSandbox:
    """A sandbox, and what a program must find in it before each use."""

    sandbox: Sandbox
    snapshot: str | None
    found: Mapping[str, object]
    uses: int = 0
    created_s: float = field(default_factory=time.monotonic)

    async def clean(self) -> list[str]:
        """Reset it; signs of pollution that are left.

        Raises:
            SandboxError: it can neither be reset nor looked into.
        """
        await self.sandbox.reset(self.snapshot)
        return differences(self.found, await probe(self.sandbox))


async def make_warm(backend: Backend, prepare: Preparation | None) -> WarmSandbox:
    """Create a sandbox and prepare it.

    Raises:
        SandboxError: one of the two did not work.
    """
    sandbox = await backend.create()
    async with undone_on_failure(sandbox.close):
        snapshot = None
        if prepare is not None:
            await prepare(sandbox)
            snapshot = await sandbox.snapshot()
        await sandbox.reset(snapshot)
        return WarmSandbox(sandbox, snapshot, await probe(sandbox))

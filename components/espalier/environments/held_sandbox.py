"""A sandbox that one episode holds, from its first program to its end."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from espalier.environments.contract import sandbox_losses
from espalier.sandbox import Sandbox
from espalier.sandbox.choice import PoolThread

T = TypeVar("T")


class HeldSandbox:
    """A sandbox borrowed at its first use, and held until `end` or until a use fails.

    Args:
        sandboxes: the pool to borrow from.
        prepare: awaited with each newly borrowed sandbox.
        judging: whether its programs judge an answer (`PoolThread.claim`).
    """

    def __init__(
        self,
        sandboxes: PoolThread,
        prepare: Callable[[Sandbox], Awaitable[None]] | None = None,
        *,
        judging: bool = False,
    ) -> None:
        self._sandboxes = sandboxes
        self._prepare = prepare
        self._judging = judging
        self._loan = AsyncExitStack()
        self._sandbox: Sandbox | None = None

    @property
    def is_held(self) -> bool:
        """Whether a sandbox is held, with everything that was left in it."""
        return self._sandbox is not None

    async def use(
        self,
        work: Callable[[Sandbox], Awaitable[T]],
        *,
        keep_at: tuple[type[Exception], ...] = (),
    ) -> T:
        """Await `work` with the sandbox, on the loop of the pool.

        If it fails or is cancelled, the sandbox is returned to the pool with the reason, and the
        next use borrows another one.

        Args:
            work: the function to run in the sandbox.
            keep_at: errors after which the sandbox is still held.

        Raises:
            EnvironmentLostError, ProgramBrokeSandboxError: as `sandbox_losses`.
        """
        with sandbox_losses():
            return await self._sandboxes.run(self._used(work, keep_at))

    def end(self) -> None:
        """Give the sandbox back at the end of the episode, from any thread and without waiting."""
        if self._sandbox is not None:
            self._sandboxes.post(self._released().aclose())

    async def _used(
        self, work: Callable[[Sandbox], Awaitable[T]], keep_at: tuple[type[Exception], ...]
    ) -> T:
        sandbox = self._sandbox or await self._borrowed()
        try:
            return await work(sandbox)
        except keep_at:
            raise
        except BaseException:
            await self._released().__aexit__(*sys.exc_info())
            raise

    async def _borrowed(self) -> Sandbox:
        claim = self._sandboxes.claim(judging=self._judging)
        sandbox = await self._loan.enter_async_context(claim)
        self._sandbox = sandbox
        if self._prepare is not None:
            try:
                await self._prepare(sandbox)
            except BaseException:
                await self._released().__aexit__(*sys.exc_info())
                raise
        return sandbox

    def _released(self) -> AsyncExitStack:
        """Return the loan and forget it."""
        loan, self._loan, self._sandbox = self._loan, AsyncExitStack(), None
        return loan

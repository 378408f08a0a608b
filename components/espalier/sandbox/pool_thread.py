"""A pool on an event loop of its own, for borrowers whose loops come and go.

Rollouts run on a new event loop each time; sandboxes are too dear to be started as often. They live
on the loop of this thread, which outlasts them, and borrowers on other loops wait for its answers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from espalier.sandbox.pool import SandboxPool
from espalier.sandbox.pool_settings import PoolSettings
from espalier.sandbox.protocol import Backend

T = TypeVar("T")


class PoolThread:
    """Opens a pool, and closes it, by `with`.

    Args:
        backend: makes the sandboxes.
        settings: of the pool.
    """

    def __init__(self, backend: Backend, settings: PoolSettings) -> None:
        self.pool = SandboxPool(backend, settings)
        self._backend = backend
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="espalier-sandboxes", daemon=True
        )

    def __enter__(self) -> Self:
        """Start, and wait for the first sandbox: where there can be none it is said at once.

        Raises:
            SandboxError: none can be had.
        """
        self._thread.start()
        try:
            self.post(self._open()).result()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Close every sandbox, lent ones too."""
        self.post(self._close()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work` on the pool's loop; whoever stops waiting cancels it there."""
        return await asyncio.wrap_future(self.post(work))

    def post(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Have `work` done on the pool's loop, and go on."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _open(self) -> None:
        await self.pool.__aenter__()
        async with self.pool.claim():
            pass

    async def _close(self) -> None:
        await self.pool.__aexit__(None, None, None)
        await self._backend.close()

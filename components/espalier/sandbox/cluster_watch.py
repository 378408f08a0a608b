"""One watch for all sandboxes of a run, however many: who waits for one is woken by its events."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable

from espalier.cluster.kubernetes_requests import read
from espalier.cluster.objects.names import K8sObject
from espalier.sandbox.api_server import ApiServer
from espalier.sandbox.cluster_state import GONE, ClusterState
from espalier.sandbox.errors import SandboxError, SandboxTimeout

_AGAIN_S = 0.5
"""After a watch that failed: the API server may be starting."""


class ClusterWatch:
    """The last state of each sandbox, kept up to date by a task.

    Args:
        server: asked for a list once, and again where the watch broke; for changes after that.
        path: of the objects.
        selector: labels of those that are this run's.
        state_of: an object's state.
    """

    def __init__(
        self,
        server: ApiServer,
        path: str,
        selector: str,
        state_of: Callable[[K8sObject], ClusterState],
    ) -> None:
        self._server = server
        self._path = path
        self._selector = selector
        self._state_of = state_of
        self._states: dict[str, ClusterState] = {}
        self._told: defaultdict[str, list[Callable[[ClusterState], None]]] = defaultdict(list)
        self._version = ""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """List once, and watch from there.

        Raises:
            SandboxError: this account may not, or the server cannot be reached.
        """
        await self._list()
        self._task = asyncio.create_task(self._keep_watching())

    async def close(self) -> None:
        """Watch no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def tell(self, name: str, listener: Callable[[ClusterState], None]) -> Callable[[], None]:
        """Call `listener` with the state of a sandbox, now and whenever it changes.

        Returns:
            What ends it.
        """
        self._told[name].append(listener)
        if name in self._states:
            listener(self._states[name])
        return lambda: self._forget(name, listener)

    async def until(
        self, name: str, holds: Callable[[ClusterState], bool], within_s: float
    ) -> ClusterState:
        """The first state for which something holds.

        Raises:
            SandboxTimeout: none came in time; the message has the last one.
        """
        reached: asyncio.Future[ClusterState] = asyncio.get_running_loop().create_future()

        def look(state: ClusterState) -> None:
            if holds(state) and not reached.done():
                reached.set_result(state)

        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()  # nobody watches any more; a fault of ours, which is raised here
        stop = self.tell(name, look)
        try:
            async with asyncio.timeout(within_s):
                return await reached
        except TimeoutError as error:
            last = self._states.get(name, ClusterState(waits_for="the API server's word of it"))
            told = last.ended or last.waits_for or "it runs"
            raise SandboxTimeout(f"{name}: not within {within_s:g} s; {told}") from error
        finally:
            stop()

    async def _keep_watching(self) -> None:
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._follow()
            except SandboxTimeout:
                await asyncio.sleep(_AGAIN_S)
            except SandboxError:  # such as 410: what was missed has to be listed
                self._version = ""
                await asyncio.sleep(_AGAIN_S)

    async def _follow(self) -> None:
        changes = read(
            self._path,
            labelSelector=self._selector, resourceVersion=self._version, timeoutSeconds="300",
        )  # fmt: skip
        async for event in self._server.watch(changes):
            if event["type"] == "ERROR":
                self._version = ""
                return
            found = event["object"]
            self._version = found["metadata"]["resourceVersion"]
            state = GONE if event["type"] == "DELETED" else self._state_of(found)
            self._note(found["metadata"]["name"], state)

    async def _list(self) -> None:
        answer = await self._server.send(read(self._path, labelSelector=self._selector))
        found = {item["metadata"]["name"]: self._state_of(item) for item in answer["items"]}
        for name in self._states.keys() - found.keys():
            self._note(name, GONE)
        for name, state in found.items():
            self._note(name, state)
        self._version = answer["metadata"]["resourceVersion"]

    def _note(self, name: str, state: ClusterState) -> None:
        self._states[name] = state
        for listener in tuple(self._told.get(name, ())):
            listener(state)
        if state.is_gone and name not in self._told:
            del self._states[name]

    def _forget(self, name: str, listener: Callable[[ClusterState], None]) -> None:
        listeners = self._told.get(name, [])
        if listener in listeners:
            listeners.remove(listener)
        if not listeners:
            self._told.pop(name, None)
            if self._states.get(name, GONE).is_gone:
                self._states.pop(name, None)

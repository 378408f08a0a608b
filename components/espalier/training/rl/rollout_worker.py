"""A thread that plays groups while the learner learns.

A thread and not a process: matrix products release the interpreter, and measured side by side the
two overlap as well as two processes do, without a second search index, a second start, and
trajectories that have to be pickled.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from espalier.training.rl.lane import Lane, Order, PlayedGroup


class _Weights(NamedTuple):
    version: int
    tensors: Mapping[str, Tensor]


class RolloutWorker:
    """Plays the groups that are ordered, each under the newest weights when it begins."""

    def __init__(self, make_lane: Callable[[], Lane], *, threads: int) -> None:
        """Set up a worker; nothing runs before `start`.

        Args:
            make_lane: a further lane, for when all are playing under older weights.
            threads: CPU threads of its matrix products, and of the learner's while it runs.
        """
        self._make_lane = make_lane
        self._threads = self._former_threads = threads
        self.version: int | None = None
        """That groups which are ordered now are played under; None before the first weights."""
        self._lanes: list[Lane] = []
        self._current: Lane | None = None
        self._playing: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._inbox: asyncio.Queue[_Weights | Order | None] = asyncio.Queue()
        self._finished: queue.SimpleQueue[PlayedGroup | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="espalier-rollouts", daemon=True)

    @property
    def num_lanes(self) -> int:
        """Copies of the policy that were needed so far."""
        return len(self._lanes)

    def start(self) -> None:
        """Begin to work; the first weights are yet to be published."""
        self._former_threads = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        self._thread.start()

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Play groups that begin from now on under `weights`, which nobody changes any more."""
        self.version = version
        self._send(_Weights(version, weights))

    def order(self, order: Order) -> None:
        """Play a group; `take` returns it when it is over."""
        self._send(order)

    def take(self, *, wait: bool) -> PlayedGroup | None:
        """A group that is over; None where none is and `wait` is false.

        Raises:
            BaseException: what the worker failed with, in the thread that waits for its groups.
        """
        try:
            found = self._finished.get(block=wait)
        except queue.Empty:
            return None
        if isinstance(found, BaseException):
            raise found
        return found

    def close(self) -> None:
        """Give up what is being played, and end the thread."""
        self._send(None)
        self._thread.join()
        torch.set_num_threads(self._former_threads)

    def _send(self, message: _Weights | Order | None) -> None:
        # the loop is closed where the worker has failed; `take` says why
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, message)

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        main = self._loop.create_task(self._serve())
        main.add_done_callback(self._pass_on)
        try:
            self._loop.run_until_complete(asyncio.wait([main]))
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        try:
            while (message := await self._inbox.get()) is not None:
                if isinstance(message, _Weights):
                    await self._switch(message)
                else:
                    assert self._current is not None, "weights are published before groups"
                    self._begin(self._current, message)
        finally:
            for task in self._playing:
                task.cancel()
            await asyncio.gather(*self._playing, return_exceptions=True)
            for lane in self._lanes:
                await lane.close()

    async def _switch(self, weights: _Weights) -> None:
        former, self._current = self._current, None
        if former is not None and not former.playing:
            await former.close()
        free = [lane for lane in self._lanes if not lane.playing]
        if not free:
            free.append(self._make_lane())
            self._lanes.append(free[0])
        await free[0].open(weights.version, weights.tensors)
        self._current = free[0]

    def _begin(self, lane: Lane, order: Order) -> None:
        lane.playing += 1
        task = self._loop.create_task(self._play(lane, order))
        self._playing.add(task)
        task.add_done_callback(self._playing.discard)
        task.add_done_callback(self._pass_on)

    async def _play(self, lane: Lane, order: Order) -> None:
        self._finished.put(await lane.play(order))
        lane.playing -= 1
        if not lane.playing and lane is not self._current:
            await lane.close()

    def _pass_on(self, task: asyncio.Task[None]) -> None:
        """Let the learner hear of a failure, which would leave it waiting for ever."""
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._finished.put(failure)

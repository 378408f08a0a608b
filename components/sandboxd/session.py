"""The stateful Python session: one job that keeps its namespace and answers call after call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from sandboxd.interpreter import CALL
from sandboxd.output import Output, pump
from sandboxd.run import Run
from sandboxd.wire import RequestError, RunEnd, RunRequest

_ENDS_WITHIN_S = 1.0
_REPLY_BYTES = 256


class Session:
    """At most one interpreter, started by the first call; a killed one loses its namespace."""

    def __init__(self, start: Callable[[], Awaitable[Run]]) -> None:
        self._start = start
        self._run: Run | None = None
        self._is_busy = False

    async def begin(self) -> Run:
        """The interpreter for one call, which `call` then makes.

        Raises:
            RequestError: a call is under way.
        """
        if self._is_busy:
            raise RequestError("the session is busy with another call", status=409)
        self._is_busy = True
        try:
            if self._run is None or self._run.ended.is_set():
                self._run = await self._start()
        except BaseException:
            self._is_busy = False
            raise
        return self._run

    async def call(self, run: Run, request: RunRequest, output: Output) -> RunEnd:
        """Run code in the namespace; what was said since the last call comes with this one."""
        run.restart_clock()
        stop = asyncio.get_running_loop().create_future()
        pumps = [
            asyncio.create_task(pump(run.descriptors.stdout, "stdout", output, stop)),
            asyncio.create_task(pump(run.descriptors.stderr, "stderr", output, stop)),
        ]
        try:
            status = await _exchange(run, request)
            if status is None:
                await _wait_for_end(run)
        finally:
            stop.set_result(None)
            await asyncio.gather(*pumps)
            self._is_busy = False
        return run.end(truncated=output.truncated, exit_status=status)


async def _exchange(run: Run, request: RunRequest) -> int | None:
    """Send the code and await its exit status; none if the interpreter ended."""
    assert request.code is not None
    control, loop = run.descriptors.control, asyncio.get_running_loop()
    assert control is not None
    source = request.code.encode()
    try:
        await loop.sock_sendall(control, CALL.pack(request.limits.cpu_s, len(source)) + source)
        reply = b""
        while not reply.endswith(b"\n") and len(reply) < _REPLY_BYTES:
            data = await loop.sock_recv(control, _REPLY_BYTES)
            if not data:
                return None
            reply += data
    except ConnectionError:
        return None
    return _status(reply)


def _status(reply: bytes) -> int | None:
    """What the interpreter said; the code in it can write to the channel, and lie."""
    try:
        status = json.loads(reply)["exit_status"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return status if status in {0, 1} else None


async def _wait_for_end(run: Run) -> None:
    try:
        async with asyncio.timeout(_ENDS_WITHIN_S):
            await run.ended.wait()
    except TimeoutError:
        run.kill("sandbox")
        await run.ended.wait()

"""Reading a request body within limits, and cancelling work when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from espalier.config import ServingConfig
from espalier.wire.requests import CLIENT_GONE, Refusal

Result = TypeVar("Result")


async def read_body(request: Request, config: ServingConfig) -> bytes:
    """Read the whole body of a request.

    Raises:
        Refusal: the content type is not JSON, or the body is too large or too late.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a browser sends it cross-site only after a preflight
        raise Refusal(415, "the body must be application/json, and say so as its content-type")
    most = config.max_body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most:
        raise _too_large(most)
    received = bytearray()
    try:
        async with asyncio.timeout(config.body_timeout_s):
            async for data in request.stream():
                received += data
                if len(received) > most:
                    raise _too_large(most)
    except TimeoutError as error:
        raise Refusal(408, f"the body did not arrive in {config.body_timeout_s:g} s") from error
    except ClientDisconnect as error:
        raise Refusal(CLIENT_GONE, "the client left") from error
    return bytes(received)


def _too_large(most: int) -> Refusal:
    return Refusal(413, f"a request has at most {most} bytes (serving.max_body_bytes)")


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Await `work` and return its result; cancel it if the client leaves first.

    Raises:
        Refusal: the client left.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Refusal(CLIENT_GONE, "the client left")
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""How soon is a dead watch noticed, and how often is a failing API server asked?

    python -m tests.benchmarks.watches
    python -m tests.benchmarks.watches --storm-s 300

The watch of the library with its own defaults, over loopback. Two connections go silent: one in a
proxy that acknowledges and passes nothing on, one at a server that takes the request and never
answers; meanwhile an object is deleted. Beside them each storm for as long as is asked: watches
that are closed at once, 410 (as status and as event), 429 with Retry-After, 500, garbage. The last
line is one JSON object; the command fails where a figure is beyond its bound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from contextlib import AsyncExitStack

from espalier.cluster.kubernetes_api import ApiRetries, AsyncKubernetesApi, object_path
from espalier.cluster.watches import ResourceWatch
from tests.fakes.watched_server import STORMS, FreezingProxy, WatchedServer

PODS = object_path("v1", "pods", "one")
NOTICED_WITHIN_S = 60.0
REQUESTS_PER_S = 2.0
_SETTLES_S = 3.0
"""Before a connection goes silent."""


class Watched:
    """A server with one object, and a watch of it."""

    def __init__(self, server: WatchedServer, port: int | None = None) -> None:
        self.server = server
        self.names: set[str] = set()
        self.deleted = asyncio.Event()
        self._api = AsyncKubernetesApi(server.settings(port), ApiRetries())
        self._watch = ResourceWatch(self._api, PODS, "app=two", self._changed)

    async def __aenter__(self) -> Watched:
        await self._watch.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._watch.close()
        await self._api.close()

    def _changed(self, name: str, found: object | None) -> None:
        if found is None:
            self.deleted.set()


async def frozen_s() -> tuple[float, float]:
    """Seconds until a frozen connection is replaced, and until the missed deletion is known."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(WatchedServer().serving())
        proxy = await stack.enter_async_context(FreezingProxy(server.port).serving())
        await server.put("first")
        watched = await stack.enter_async_context(Watched(server, proxy.port))
        await asyncio.sleep(_SETTLES_S)
        clock = asyncio.get_running_loop().time
        began, before = clock(), len(proxy.connections)
        proxy.freeze()
        await server.remove("first")
        await watched.deleted.wait()
        return proxy.connections[before] - began, clock() - began


async def silent_s() -> float:
    """Seconds until a server is asked again that took a watch's request and never answered."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(WatchedServer().serving())
        await server.put("first")
        await stack.enter_async_context(Watched(server))
        await asyncio.sleep(_SETTLES_S)
        server.behaves = "silent"
        await server.put("second")  # ends the watch that there is
        before = len(server.requests)
        while len(server.requests) < before + 2:
            await asyncio.sleep(0.05)
        (_, asked), (_, again) = server.requests[before : before + 2]
        return again - asked


async def storm_per_s(behaves: str, seconds: float) -> float:
    """Requests a second while a server behaves like that."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(WatchedServer().serving())
        await server.put("first")
        await stack.enter_async_context(Watched(server))
        await asyncio.sleep(_SETTLES_S)
        server.behaves = behaves
        await server.put("second")
        before = len(server.requests)
        await asyncio.sleep(seconds)
        return (len(server.requests) - before) / seconds


async def measured(storm_s: float) -> dict[str, object]:
    """All figures; everything runs beside each other."""
    (frozen, missed), silent, *storms = await asyncio.gather(
        frozen_s(), silent_s(), *(storm_per_s(storm, storm_s) for storm in STORMS)
    )
    return {
        "benchmark": "watches",
        "half_open_noticed_s": round(frozen, 1),
        "missed_deletion_known_s": round(missed, 1),
        "never_answered_noticed_s": round(silent, 1),
        "storm_s": storm_s,
        "requests_per_s": dict(zip(STORMS, (round(rate, 2) for rate in storms), strict=True)),
    }


def is_well(figures: dict[str, object]) -> bool:
    """Whether every figure is within its bound."""
    noticed = [figures[key] for key in ("half_open_noticed_s", "never_answered_noticed_s")]
    rates = figures["requests_per_s"].values()
    return all(s <= NOTICED_WITHIN_S for s in noticed) and all(r < REQUESTS_PER_S for r in rates)


def main() -> int:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--storm-s", type=float, default=60.0, help="how long each storm lasts")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # a line for every attempt
    figures = asyncio.run(measured(options.storm_s))
    for name, rate in figures["requests_per_s"].items():
        print(f"{name:16} {rate:5.2f} requests/s")
    print(json.dumps({**figures, "is_well": is_well(figures)}))
    return 0 if is_well(figures) else 1


if __name__ == "__main__":
    sys.exit(main())

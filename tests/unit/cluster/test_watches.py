"""A resource that is followed, while its API server does everything that it should not."""

import asyncio
import contextlib
import logging
import socket
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from espalier.cluster import kubernetes_api
from espalier.cluster.kubernetes_api import (
    ApiError,
    ApiRetries,
    AsyncKubernetesApi,
    keepalive_options,
    object_path,
)
from espalier.cluster.watches import ResourceWatch, WatchError, WatchSettings, parsed_event
from tests.fakes.watched_server import RETRY_AFTER_S, STORMS, FreezingProxy, WatchedServer

PODS = object_path("v1", "pods", "one")
QUICK = WatchSettings(
    lasts_s=1.0, grace_s=0.2, settled_s=0.05, jitter=lambda: 0.0,
    retries=ApiRetries(first_pause_s=0.01, longest_pause_s=0.05),
)  # fmt: skip
LATEST = WatchSettings(
    retries=replace(WatchSettings().retries, jitter=lambda: 1.0), jitter=lambda: 0.0
)
"""The real pauses, none of them shortened."""


class Following:
    """A watch, and what it told."""

    def __init__(self, server, port=None, settings=QUICK):
        self.told = []
        self._api = AsyncKubernetesApi(server.settings(port), ApiRetries())
        self.watch = ResourceWatch(self._api, PODS, "app=two", self._take, settings)

    def _take(self, name, found):
        self.told.append((name, found is not None))

    @asynccontextmanager
    async def started(self):
        await self.watch.start()
        try:
            yield self
        finally:
            await self.watch.close()
            await self._api.close()


def run(work, **options):
    async def main():
        async with WatchedServer().serving() as server, asyncio.timeout(60):
            await server.put("first")
            async with Following(server, **options).started() as following:
                return await work(server, following)

    return asyncio.run(main())


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


def test_a_watch_asks_for_an_end_and_for_bookmarks():
    async def work(server, following):
        await until(lambda: server.queries)
        return server.queries[0]

    asked = run(work, settings=LATEST)
    assert 0 < int(asked["timeoutSeconds"]) < 60
    assert (asked["allowWatchBookmarks"], asked["labelSelector"]) == ("true", "app=two")


def test_a_quiet_watch_goes_on_from_its_bookmark():
    async def work(server, following):
        server._version = "900"  # other objects changed: no event of ours, and a bookmark says so
        await until(lambda: len(server.queries) == 3)
        return server.queries[2]["resourceVersion"], server.count("list"), following.told

    version, lists, told = run(work)
    assert (version, lists, told) == ("900", 1, [("first", True)])


@pytest.mark.parametrize("how", ["silent", "stalls"])
def test_a_server_that_goes_silent_is_asked_again(how):
    async def work(server, following):
        server.behaves = how
        await server.put("second")  # ends the present watch
        await until(lambda: server.count("watch") >= 2)
        server.behaves = "well"
        await until(lambda: ("second", True) in following.told)

    run(work)


def test_what_a_frozen_connection_missed_is_made_up_for():
    async def work(server, _):
        async with (
            FreezingProxy(server.port).serving() as proxy,
            Following(server, proxy.port).started() as following,
        ):
            await until(lambda: len(server.queries) >= 2)
            proxy.freeze()
            await server.remove("first")
            await server.put("second")
            await until(lambda: ("second", True) in following.told)
            return following.told

    assert run(work) == [("first", True), ("first", False), ("second", True)]


def test_a_deletion_that_no_watch_shows_is_listed():
    async def work(server, following):
        server.behaves = "gone"
        await server.remove("first")
        server._history.clear()
        await until(lambda: ("first", False) in following.told)
        return server.count("list")

    assert run(work) >= 2


@pytest.mark.parametrize("storm", STORMS)
def test_a_storm_gets_fewer_than_two_requests_a_second(monkeypatch, storm):
    pauses = []
    real_sleep = asyncio.sleep

    async def work(server, following):
        server.behaves = storm
        await server.put("second")
        before = len(server.requests)

        async def taken_down(seconds):
            pauses.append(seconds)
            await real_sleep(0 if len(pauses) < 12 else 3600)

        monkeypatch.setattr("espalier.cluster.watches.asyncio.sleep", taken_down)
        while len(pauses) < 12:
            await real_sleep(0.005)
        return len(server.requests) - before

    requests = run(work, settings=LATEST)
    floor = RETRY_AFTER_S if "busy" in storm else 0
    assert pauses[-6:] == [15.0] * 6
    assert pauses[-12:][:4] == [max(floor, pause) for pause in (1, 2, 4, 8)]
    # half of them, where every pause is as short as chance makes it
    assert requests / (sum(pauses) / 2) < 2 / 3


def test_after_the_storm_nothing_is_missing():
    async def work(server, following):
        for storm in STORMS:
            server.behaves = storm
            await server.put(storm)
            await asyncio.sleep(0.02)
        await server.remove("first")
        server.behaves = "well"
        await until(lambda: {name for name, _ in following.told} >= {"first", *STORMS})
        await until(lambda: ("first", False) in following.told)

    run(work)


def test_a_line_without_end_fills_no_memory(monkeypatch, caplog):
    monkeypatch.setattr(kubernetes_api, "_LONGEST_LINE_BYTES", 3 * 2**20)

    async def work(server, following):
        server.behaves = "endless"
        await server.put("second")
        await until(lambda: "a line of more than" in caplog.text)

    with caplog.at_level(logging.WARNING):
        run(work)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[" * 100_000,
        b'{"type": "ADDED", "object": {"metadata": {"name": "a"}}}',
        b'{"type": "PAUSED", "object": {"metadata": {"name": "a", "resourceVersion": "1"}}}',
        b'{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": 1}}}',
        b'{"type": "ERROR", "object": {}}',
    ],
)
def test_what_is_no_event_breaks_the_watch_off(line):
    with pytest.raises(WatchError, match=PODS):
        parsed_event(PODS, line)


def test_a_list_without_a_version_is_an_error():
    async def main():
        async with WatchedServer().serving() as server:
            server._version = None
            with pytest.raises(ApiError, match="no list"):
                async with Following(server).started():
                    pass

    asyncio.run(main())


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="no such options on this system")
def test_the_kernel_is_asked_to_notice_dead_peers():
    with contextlib.closing(socket.socket()) as one:
        for option in keepalive_options():
            one.setsockopt(*option)
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle, interval, count = (
            one.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
        )
    assert idle + interval * count < 60

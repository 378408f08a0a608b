"""Watches the objects of one kind: a list, then watches that continue from it.

    pods = ResourceWatch(api, object_path("v1", "pods", "one"), "app=two", changed)
    await pods.start()      # changed(name, object) for every object, then for every change

No change is lost with the connection: missed changes are read from a new list, and an object that
is no longer in it counts as deleted. Silent connections are detected: the server ends each watch
after `lasts_s`, so one that is still open `grace_s` later is dead. Bookmarks keep the version fresh
from which the next watch continues. After a failure, a refusal or an immediate end the pauses
double, until a watch has lasted for `settled_s`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from espalier.cluster.kubernetes_api import (
    ApiError,
    ApiRequest,
    ApiRetries,
    AsyncKubernetesApi,
    read,
    retry_seconds,
)
from espalier.cluster.objects.names import K8sObject

Changed = Callable[[str, K8sObject | None], None]
"""Takes the name of an object and its current state, which is None when it was deleted."""

_log = logging.getLogger(__name__)


_RETRIES = ApiRetries(first_pause_s=1.0, longest_pause_s=15.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """Deadlines and pauses of a watch.

    A dead connection is detected at most lasts_s + grace_s, 50 s by default, after its start.

    Attributes:
        lasts_s: seconds for which the server keeps a watch open (timeoutSeconds); each is up to a
            quarter shorter at random, so that the watches of many runs do not end together.
        grace_s: seconds after that when the client closes it.
        settled_s: seconds that a watch must last to end the doubling of pauses.
        retries: pauses after a failure; attempts are unlimited.
        jitter: random number from 0 (the longest watch) to 1.
    """

    lasts_s: float = 40.0
    grace_s: float = 10.0
    settled_s: float = 5.0
    retries: ApiRetries = _RETRIES
    jitter: Callable[[], float] = random.random


class WatchError(ApiError):
    """A watch sent an error or an invalid event; a new list is needed."""


class WatchEvent(NamedTuple):
    """A line of a watch."""

    kind: str
    """ADDED, MODIFIED, DELETED, or BOOKMARK, whose object has only a resource version."""
    object: K8sObject


class ResourceWatch:
    """Watch on the objects that a selector matches, which runs in one task.

    Args:
        api: client of the cluster.
        path: path of the kind (`object_path`).
        selector: label selector.
        changed: called in the task for each change; its errors end the watch (`raise_fault`).
        settings: deadlines and pauses.
    """

    def __init__(
        self,
        api: AsyncKubernetesApi,
        path: str,
        selector: str,
        changed: Changed,
        settings: WatchSettings | None = None,
    ) -> None:
        self._api = api
        self._path = path
        self._selector = selector
        self._changed = changed
        self._settings = settings or WatchSettings()
        self._known: set[str] = set()
        self._version = ""
        self._failures = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """List once, then watch in a task.

        Raises:
            ApiError: refused, or the server is unreachable.
        """
        self._take_list(await self._api.send(self._list_request()))
        self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def raise_fault(self) -> None:
        """Raise the error of `changed` that ended the watch, if one did."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    async def _follow(self) -> None:
        while True:
            try:
                if not self._version:
                    self._take_list(await self._api.send_once(self._list_request()))
                await self._watch_once()
                continue
            except WatchError as error:
                self._version, fault = "", error
            except ApiError as error:
                # a restarted server continues from the version; after a second failure the version
                # may be unknown to it, and HTTP 410 says that it is
                if not error.is_transient or self._failures:
                    self._version = ""
                fault = error
            self._failures += 1
            pause_s = self._settings.retries.pause_s(self._failures, fault)
            _log.warning("%s; next attempt in %.2g s", fault, pause_s)
            await asyncio.sleep(pause_s)

    async def _watch_once(self) -> None:
        """Watch until the server ends the watch.

        Raises:
            ApiError: the connection broke, the server refused, was silent after the watch's time,
                or ended it at once.
        """
        settings, clock = self._settings, asyncio.get_running_loop().time
        lasts_s = max(1, round(settings.lasts_s * (1 - settings.jitter() / 4)))
        request = read(
            self._path, labelSelector=self._selector, resourceVersion=self._version,
            watch="true", timeoutSeconds=str(lasts_s), allowWatchBookmarks="true",
        )  # fmt: skip
        began, spoke = clock(), False
        try:
            async with (
                asyncio.timeout(lasts_s + settings.grace_s),
                contextlib.aclosing(self._api.lines(request)) as lines,
            ):
                async for line in lines:
                    event = parsed_event(self._path, line)
                    spoke = True
                    self._version = event.object["metadata"]["resourceVersion"]
                    if event.kind != "BOOKMARK":
                        self._take(event.object, is_deleted=event.kind == "DELETED")
        except TimeoutError as error:
            raise ApiError(
                f"could not watch {self._path}: the connection is silent; the server should have "
                f"ended the watch after {lasts_s} s"
            ) from error
        finally:
            # only a watch that lasted shows that the server works: one that ends every watch at
            # once may still send events
            if spoke and clock() - began >= settings.settled_s:
                self._failures = 0
        if clock() - began < settings.settled_s:
            raise ApiError(f"could not watch {self._path}: the server ended the watch at once")
        self._failures = 0

    def _list_request(self) -> ApiRequest:
        return read(self._path, labelSelector=self._selector)

    def _take_list(self, answer: K8sObject) -> None:
        """Call `changed` for every object of a list, and for known objects that are not in it.

        Raises:
            ApiError: the answer is no list.
        """
        match answer:
            case {"metadata": {"resourceVersion": str(version)}, "items": list(items)}:
                found = {item["metadata"]["name"]: item for item in items}
            case _:
                raise ApiError(f"could not read {self._path}: the answer is no list", status=200)
        for name in self._known - found.keys():
            self._known.discard(name)
            self._changed(name, None)
        for item in found.values():
            self._take(item, is_deleted=False)
        self._version = version

    def _take(self, found: K8sObject, *, is_deleted: bool) -> None:
        name = found["metadata"]["name"]
        if is_deleted:
            self._known.discard(name)
        else:
            self._known.add(name)
        self._changed(name, None if is_deleted else found)


_EXCERPT = 300
"""First characters of an invalid event that an error quotes."""


def parsed_event(path: str, line: bytes) -> WatchEvent:
    """Parse a line of a watch.

    Raises:
        WatchError: the line is no event, or an ERROR event.
    """
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        event = None
    match event:
        case {"type": "ERROR", "object": dict(reported)}:
            raise _reported(path, reported)
        case {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str()}} as found}:
            return WatchEvent("BOOKMARK", found)
        case {
            "type": "ADDED" | "MODIFIED" | "DELETED" as kind,
            "object": {"metadata": {"name": str(), "resourceVersion": str()}} as found,
        }:
            return WatchEvent(kind, found)
        case _:
            raise WatchError(f"could not watch {path}: no event: {line[:_EXCERPT]!r}", status=200)


def _reported(path: str, status: K8sObject) -> WatchError:
    """The error of an ERROR event, whose object is a Status."""
    code, details = status.get("code"), status.get("details")
    asked = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    return WatchError(
        f"could not watch {path}: {status.get('message') or status.get('reason')} ({code})",
        status=code if isinstance(code, int) else 200,
        retry_after_s=retry_seconds(asked),
    )

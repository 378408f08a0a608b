"""Several vLLM servers as one: which of them a session asks, and what is done when one is lost.

A session stays with one server, whose prefix cache holds its context. The server is chosen by the
session's prompt, which the attempts at a task share (`completions.routing`).

A server that does not answer is left out, and the sessions on it go on elsewhere from their tokens:
every request holds the whole context. One that comes, or comes back, gets the current weights
before it is asked. Alone, a server has nobody to go to: its errors are the run's.

New weights may come while sessions are open. Each answer says which version sampled it, and no
answer mixes two.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from espalier.completions import routing
from espalier.config import VllmConfig
from espalier.records import EngineError, HungError, PolicyError, ServerAwayError
from espalier.rollout.engines.shared_weights import share
from espalier.rollout.engines.vllm_client import (
    READY_POLL_S,
    Answer,
    OpenRequests,
    VllmClient,
)
from espalier.rollout.engines.vllm_weights import (
    EXCHANGES,
    Loaded,
    WeightExchange,
    expect_processed_logprobs,
)

_OTHERS_WITHIN_S = 10.0
"""How long servers that are still starting are awaited once another one is ready."""
_LOOKS_EVERY_S = 5.0

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class PooledServer(routing.RoutedServer):
    """One server of the pool, across its connections."""

    client: VllmClient = field(init=False)
    """Its connections, which belong to one event loop."""
    requests: OpenRequests = field(init=False)
    exchanging: asyncio.Lock = field(init=False)
    """Held while it is given weights."""
    is_ready: bool = False
    """Whether it was there when it was last needed."""
    loaded: Loaded | None = None
    """What it samples from; None: it is not asked."""


Seat = routing.Seat[PooledServer]
"""A session's place."""


class ServerPool:
    """The servers of `rollout.vllm.urls`, for engines of one event loop at a time."""

    def __init__(self, config: VllmConfig, *, connections: int, backoff_s: float = 0.5) -> None:
        self.lost = 0
        """Number of times that a server was left out."""
        self.version = 0
        """Version of the weights that were loaded last."""
        self._config = config
        self._exchange: WeightExchange = EXCHANGES[config.exchange]()
        self._connections = connections
        self._backoff_s = backoff_s
        self.servers: dict[str, PooledServer] = {}
        """By address; also those that are left out."""
        self._routes = routing.Routes(f"{self.name}: no vLLM server", lambda: self.usable)
        self._wanted: tuple[Path, int] | None = None
        """Directory and version of the weights that every server should have."""
        self._is_connected = False

    @property
    def has_weights(self) -> bool:
        """Whether `load` was called."""
        return self._wanted is not None

    @property
    def usable(self) -> list[PooledServer]:
        """The servers that are asked."""
        return [server for server in self.servers.values() if server.loaded is not None]

    @property
    def name(self) -> str:
        """The addresses, for messages."""
        return ", ".join(self._config.urls)

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[None]:
        """Within the block the servers can be asked; connections belong to one event loop.

        Servers that are new or back are looked for meanwhile. A block inside another one shares its
        connections.

        Raises:
            ServerAwayError: no server is ready within `ready_timeout_s`.
            EngineError: a server serves another model.
        """
        if self._is_connected:
            yield
            return
        known, self.servers = self.servers, {}
        for url, host in (await self._first_addresses()).items():
            self._connect(known.get(url) or PooledServer(url), host)
        self._is_connected = True
        try:
            await self._wait_until_ready()
            looking = asyncio.create_task(self._admit_newcomers())
            try:
                yield
            finally:
                looking.cancel()
                with suppress(asyncio.CancelledError):
                    await looking
        finally:
            self._is_connected = False
            for server in self.servers.values():
                server.open_seats = 0
                await server.client.close()

    async def load(self, policy_dir: Path, version: int) -> None:
        """Give these weights to every server; those that cannot be reached are left out.

        Raises:
            PolicyError: the directory cannot be loaded.
            EngineError: a server refuses, or none is left.
            HungError: no server has them within `exchange_timeout_s`.
        """
        if (shared_dir := self._config.shared_dir) is not None:
            policy_dir = await asyncio.to_thread(share, policy_dir, shared_dir)
        self._wanted = policy_dir, version
        servers = [server for server in self.servers.values() if server.is_ready]
        done = await asyncio.gather(*map(self._give_weights, servers), return_exceptions=True)
        lost = {s: error for s, error in zip(servers, done, strict=True) if error is not None}
        for error in lost.values():
            if len(lost) == len(servers) or not isinstance(error, ServerAwayError | HungError):
                raise error
        for server, error in lost.items():
            if server.is_ready:  # no session has noticed
                self._leave_out(server, error)
        self.version = version

    async def check_weights(self, *, mends: bool) -> None:
        """Compare every server's weights with those loaded into it.

        Args:
            mends: a server that was restarted gets the weights again; otherwise, after sampling, it
                is an error, since nobody knows what it sampled from.

        Raises:
            EngineError: a server has other weights, or none can be reached.
        """
        for server in self.usable:
            assert server.loaded is not None
            try:
                found, served = await self._exchange.found(server.client, server.loaded)
                if found == "restarted" and mends:
                    await self._give_weights(server)
                elif found != "loaded":
                    raise EngineError(
                        f"{server.url} serves weights {served!r}, not {server.loaded.version!r} "
                        "which were loaded into it: it was restarted, or another run uses it. Give "
                        "every run servers of its own, then resume this one"
                    )
                if mends:
                    await expect_processed_logprobs(server.client, server.loaded.model)
            except (ServerAwayError, HungError) as error:
                if len(self.usable) == 1:
                    raise
                self._leave_out(server, error)

    def seat(self, prompt_ids: Sequence[int]) -> Seat:
        """Give a new session a server."""
        return self._routes.seat(repr(list(prompt_ids)))

    def leave(self, seat: Seat) -> None:
        """End a session."""
        self._routes.leave(seat)

    async def complete(self, seat: Seat, asked: Mapping[str, object]) -> Answer:
        """Request one completion from the session's server, or from another if it is lost.

        Raises:
            EngineError: the server refuses, or the last one is lost.
        """
        while True:
            server = seat.server
            await server.requests.may_begin()
            if server.loaded is None:
                self._routes.move(seat)
                continue
            asking = self._ask(server, server.loaded, asked)
            answer = await server.requests.answer(server.loaded.model, asking)
            if answer is not None:
                server.answered += 1
                return answer

    async def _ask(
        self, server: PooledServer, loaded: Loaded, asked: Mapping[str, object]
    ) -> Answer | None:
        """Request one completion from this server; None if it was left out."""
        has_others = len(self.usable) > 1
        try:
            return await self._answered(server, loaded, asked, attempts=1 if has_others else None)
        except EngineError as error:
            if not has_others:
                raise
            if not await self._is_as_loaded(server, loaded):
                if server.loaded is None:  # another session has noticed
                    return None
                if len(self.usable) > 1:
                    self._leave_out(server, error)
                    return None
                # the others were lost meanwhile: it is asked as often as a server alone
            if not isinstance(error, ServerAwayError):
                raise  # the request itself is refused, as it would be elsewhere
            return await self._answered(server, loaded, asked)

    async def _answered(
        self,
        server: PooledServer,
        loaded: Loaded,
        asked: Mapping[str, object],
        *,
        attempts: int | None = None,
    ) -> Answer:
        """Request one completion from this server, and check that its weights were the right ones.

        A server that was restarted has its first weights, until they are exchanged again. It has
        also closed its connections, so that only the first answer of a connection is in doubt.
        """
        payload = {
            **asked,
            "model": loaded.model,
            "cache_salt": loaded.version,  # keys of other weights are not used
        }
        answer = await server.client.complete(payload, attempts=attempts)
        if answer.is_cut and not server.requests.is_held:
            raise EngineError(
                f"{server.url} broke the completion off, while this run exchanged no weights; does "
                "another run use it? Give every run servers of its own"
            )
        if answer.is_of_new_connection and not await self._is_as_loaded(server, loaded):
            raise EngineError(f"{server.url} was restarted, and has not the weights of this run")
        answer.policy_version = loaded.number
        return answer

    async def _admit_newcomers(self) -> None:
        """For ever, look for servers that are new or back, and give them the weights."""
        while True:
            await asyncio.sleep(_LOOKS_EVERY_S)
            for url, host in (await self._addresses()).items():
                if url not in self.servers:
                    self._connect(PooledServer(url), host)
                server = self.servers[url]
                if server.loaded is None and await server.client.health_fault() is None:
                    await self._admit(server)

    async def _admit(self, server: PooledServer) -> None:
        try:
            await self._give_weights(server, is_new=True)
        except (EngineError, PolicyError, HungError) as error:
            server.loaded = None
            _log.warning("%s is not used: %s", server.url, error)
        else:
            server.is_ready = True  # at once: weights that come from now on are given to it too
            _log.warning("%s is used from now on (%d servers)", server.url, len(self.usable))

    async def _give_weights(self, server: PooledServer, *, is_new: bool = False) -> None:
        """Give the server the weights that it should have, also if these change meanwhile.

        Args:
            server: the server.
            is_new: it is checked before it is asked.
        """
        async with server.exchanging:
            try:
                while True:
                    assert self._wanted is not None
                    given = self._wanted
                    loaded = await self._exchanged(server, *given)
                    if is_new:
                        await expect_processed_logprobs(server.client, loaded.model)
                    if given == self._wanted:
                        break
            except BaseException:
                if len(self.usable) > 1:  # nobody knows which weights it has
                    server.loaded = None
                raise
            server.loaded = loaded

    async def _exchanged(self, server: PooledServer, policy_dir: Path, version: int) -> Loaded:
        limit_s = self._config.exchange_timeout_s
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                return await self._exchange.load(
                    server.client, policy_dir, version, server.requests
                )
        except ServerAwayError as error:
            raise ServerAwayError(f"weights of version {version}: {error}") from error
        except EngineError as error:
            raise EngineError(f"weights of version {version}: {error}") from error
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise HungError(
                f"{server.url}: the exchange of weights for version {version} hangs: "
                f"{server.client.given_up or 'GET /v1/models'} was not answered within "
                f"{limit_s:g} s. Look into the server's log, restart it and give the same command "
                "again, which goes on from the last checkpoint; or raise "
                "rollout.vllm.exchange_timeout_s"
            ) from error

    async def _is_as_loaded(self, server: PooledServer, loaded: Loaded) -> bool:
        """Whether the server is healthy and has its weights: then a request alone has failed."""
        if server.loaded is None or await server.client.health_fault() is not None:
            return False
        try:
            found, _ = await self._exchange.found(server.client, loaded)
        except ServerAwayError:
            return False
        return found == "loaded"

    def _leave_out(self, server: PooledServer, error: BaseException) -> None:
        server.loaded, server.is_ready = None, False
        self.lost += 1
        _log.warning("%s is left out (%d servers remain): %s", server.url, len(self.usable), error)

    async def _wait_until_ready(self) -> None:
        servers = list(self.servers.values())
        expected = [server for server in servers if server.is_ready] or servers
        for server in expected:
            server.is_ready = False
        waits = {asyncio.create_task(s.client.wait_until_ready()): s for s in expected}
        try:
            pending = set(waits)
            while pending and not any(server.is_ready for server in expected):
                done, pending = await asyncio.wait(pending, return_when="FIRST_COMPLETED")
                for wait in done:
                    self._settle(wait, waits[wait])
            if not any(server.is_ready for server in expected):
                raise next(filter(None, (wait.exception() for wait in waits)))
            if pending:
                done, pending = await asyncio.wait(pending, timeout=_OTHERS_WITHIN_S)
                for wait in done:
                    self._settle(wait, waits[wait])
            for wait in pending:
                self._leave_out(waits[wait], TimeoutError("not ready yet, as others are"))
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _settle(self, wait: asyncio.Task[None], server: PooledServer) -> None:
        """Note whether a server became ready; one that is away is left out.

        Raises:
            EngineError: it is there, and serves another model.
        """
        error = wait.exception()
        server.is_ready = error is None
        if error is not None:
            if not isinstance(error, ServerAwayError):
                raise error
            self._leave_out(server, error)

    def _connect(self, server: PooledServer, host: str) -> None:
        server.client = VllmClient(
            self._config, server.url, host, connections=self._connections, backoff_s=self._backoff_s
        )
        server.requests, server.exchanging = OpenRequests(), asyncio.Lock()
        self.servers[server.url] = server

    async def _first_addresses(self) -> dict[str, str]:
        """Wait until there are some: the name of a Service without pods has none."""
        until_s = time.monotonic() + self._config.ready_timeout_s
        while not (found := await self._addresses()):
            if time.monotonic() > until_s:
                raise ServerAwayError(
                    f"{self.name}: the host name has no address after "
                    f"{self._config.ready_timeout_s:g} s. Start a server, correct "
                    "rollout.vllm.urls, or raise rollout.vllm.ready_timeout_s"
                )
            await asyncio.sleep(READY_POLL_S)
        return found

    async def _addresses(self) -> dict[str, str]:
        """Address of each server -> host name of the profile's address for it."""
        found: dict[str, str] = {}
        for url in self._config.urls:
            found |= dict.fromkeys(await routing.addresses_of(url), urlsplit(url).netloc)
        return found

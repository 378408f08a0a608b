"""The server process: listens, loads the policy, answers, drains on SIGTERM.

TLS, keys and the limit of open files are checked before it listens.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from espalier.chain import expect_of_one_run
from espalier.config import Profile, ServingConfig
from espalier.determinism import prepare_torch
from espalier.serving.agent import ServedAgent, open_agent
from espalier.serving.app import Endpoint
from espalier.serving.engine_thread import EngineThread
from espalier.serving.planning import new_seed
from espalier.serving.source import (
    Source,
    directory_source,
    fetched_version,
    is_reference,
    registry_uri,
)
from espalier.serving.tls import TlsFiles
from espalier.wire.keys import KEYS_VARIABLE, ApiKeys
from espalier.wire.listening import BoundedServer, is_loopback, listening, within_open_files

if TYPE_CHECKING:  # it imports torch, and probes must be answered before that is loaded
    from espalier.serving.served_policy import ServedPolicy


_REFRESH_S = 2.0
"""Seconds between two checks whether the files of keys and certificate changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The model to serve, and the address to listen on."""

    model: str | None
    """A policy directory or a registered version; None: the trained policy of `run`, and without a
    run stay not ready."""
    run: Path | None = None
    """A finished run in whose environments the policy answers questions by whole episodes."""
    digest: str | None = None
    """Digest of the approved policy; None checks none."""
    host: str = "127.0.0.1"
    port: int = 8000
    runs_dir: Path = Path("runs")
    """Directory whose mlflow.db is the registry, where MLFLOW_TRACKING_URI is not set."""


def serve(serving: Serving, profile: Profile, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        serving: what is served, and where.
        profile: limits of the endpoint; with `serving.run` the run's own.
        say: takes lines for the log.

    Raises:
        ServingError: the address is in use, keys or certificate are invalid, or the version may
            not be served.
        ArtifactError: the run is not finished, or damaged.
        DataError: the tasks of the run have a state of their own, which no question has.
        PolicyError: the policy cannot be loaded.
        RegistryError: the registry cannot be reached, or the version is damaged.
    """
    door = opened_door(profile.serving)
    bounds = within_open_files(profile.serving, say)
    profile = profile.model_copy(update={"serving": bounds})
    if door.keys is None and not is_loopback(serving.host):
        say(
            f"warning: everyone who can reach {serving.host}:{serving.port} can use it: there are "
            "no API keys. Create one with `espalier api-key NAME --file FILE`, and set "
            "serving.api_keys_file = FILE"
        )
    with listening(serving.host, serving.port) as listener, ExitStack() as kept:
        asyncio.run(_serve(serving, profile, door, listener, kept, say))


class Door(NamedTuple):
    """API keys and TLS files of the endpoint; None where it has none."""

    keys: ApiKeys | None = None
    tls: TlsFiles | None = None


def opened_door(config: ServingConfig) -> Door:
    """Load API keys and the certificate.

    Raises:
        ServingError: one of them is invalid or cannot be read.
    """
    keys = ApiKeys.open(config.api_keys_file, os.environ)
    # removed so that child processes, logs and trackers cannot get the keys
    os.environ.pop(KEYS_VARIABLE, None)
    tls = None
    if config.tls_certificate_file is not None and config.tls_key_file is not None:
        tls = TlsFiles(config.tls_certificate_file, config.tls_key_file)
    return Door(keys, tls)


async def _serve(
    serving: Serving,
    profile: Profile,
    door: Door,
    listener: socket.socket,
    kept: ExitStack,
    say: Callable[[str], None],
) -> None:
    """Answer probes at once, and requests as soon as the policy is loaded.

    "listening on" is printed once the policy is loaded, because a check of the version may fail.
    """
    endpoint = Endpoint(profile.serving, new_seed, door.keys)
    server = DrainingServer(endpoint, profile.serving, door)
    host, port = listener.getsockname()[:2]
    address = f"{'https' if door.tls else 'http'}://{host}:{port}"
    loading = asyncio.create_task(_load(serving, profile, endpoint, kept, say))
    loading.add_done_callback(lambda task: _tell_outcome(task, server, address, say))
    await server.serve(sockets=[listener])
    if loading.done():
        loading.result()


async def _load(
    serving: Serving,
    profile: Profile,
    endpoint: Endpoint,
    kept: ExitStack,
    say: Callable[[str], None],
) -> None:
    if serving.model is None and serving.run is None:
        say("no version to serve yet: ESPALIER_MODEL is not set")
        return
    loaded = serving.model or str(serving.run)
    endpoint.wait_for(f"{loaded} is being loaded")
    say(f"loading {loaded}")
    if serving.run is not None:
        agent = await asyncio.to_thread(_opened_agent, serving, serving.run, profile, kept)
        endpoint.serve_agent(agent)
        say(f"serving {loaded} as {agent.source.names[0]}, an agent in the tasks of {serving.run}")
        return
    opened = await asyncio.to_thread(_opened, serving, profile, kept)
    endpoint.serve(opened.policy, opened.engine)
    say(f"serving {loaded} as {opened.policy.source.names[0]}")


def _found(model: str, serving: Serving, kept: ExitStack) -> tuple[Path, Source]:
    """Directory and source of a policy directory or a registered version."""
    if is_reference(model):
        uri = registry_uri(serving.runs_dir)
        return kept.enter_context(fetched_version(uri, model, serving.digest))
    return Path(model), directory_source(Path(model))


def _opened_agent(serving: Serving, run: Path, profile: Profile, kept: ExitStack) -> ServedAgent:
    if serving.model is None:
        expect_of_one_run(run, "trained_policy")
        directory = run / "trained_policy" / "policy"
        source = replace(directory_source(directory), names=(run.resolve().name,))
    else:
        directory, source = _found(serving.model, serving, kept)
    source = replace(source, described={**source.described, "run": str(run.resolve())})
    prepare_torch(profile.threads)
    return kept.enter_context(open_agent(run, directory, source, profile))


class _Opened(NamedTuple):
    policy: ServedPolicy
    engine: EngineThread


def _opened(serving: Serving, profile: Profile, kept: ExitStack) -> _Opened:
    assert serving.model is not None, "without a model nothing is opened"
    directory, source = _found(serving.model, serving, kept)
    # imported after all checks: it imports torch
    from espalier.serving.served_policy import open_policy

    prepare_torch(profile.threads)
    policy = open_policy(
        directory, source, profile.serving, profile.policy.dialect, profile.hardware
    )
    engine = EngineThread(policy.engine)
    engine.start()
    kept.callback(engine.stop)
    return _Opened(policy, engine)


def _tell_outcome(
    loading: asyncio.Task[None], server: DrainingServer, address: str, say: Callable[[str], None]
) -> None:
    if loading.cancelled() or loading.exception() is not None:
        server.should_exit = True
    else:
        say(f"listening on {address}")


class _Refreshed(Protocol):
    """Content of files that may change."""

    def refresh(self) -> None:
        """Read the files again if they have changed."""
        ...


class DrainingServer(BoundedServer):
    """Server that drains on SIGTERM, as a cluster expects, and stops at once on SIGINT."""

    def __init__(self, endpoint: Endpoint, config: ServingConfig, door: Door) -> None:
        """Serve an endpoint.

        Args:
            endpoint: application; fails its readiness after SIGTERM.
            config: times and limits.
            door: keys and TLS files, which are read again when they change.
        """
        super().__init__(
            endpoint.app(), endpoint.places, drain_s=config.drain_s, has_keys=door.keys is not None
        )
        self._linger_s = config.linger_s
        self._endpoint = endpoint
        if (tls := door.tls) is not None:
            self._tls_context = lambda: tls.context
        self._watched: Sequence[_Refreshed] = [one for one in door if one is not None]
        self._watching: asyncio.Task[None] | None = None
        self._is_leaving = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, and start to watch the files."""
        await super().startup(sockets)
        if self._watched:
            self._watching = asyncio.create_task(self._watch_files())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish the requests in flight, and close."""
        if self._watching is not None:
            self._watching.cancel()
        await super().shutdown(sockets)

    async def _watch_files(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            for one in self._watched:
                await asyncio.to_thread(one.refresh)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain, or stop at once on SIGINT or a second signal."""
        if self._is_leaving or sig == signal.SIGINT:
            self.should_exit = True
            return
        self._is_leaving = True
        # a signal handler may interrupt any code, so the event loop does the work
        asyncio.get_running_loop().call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        self._endpoint.leave()
        asyncio.get_running_loop().call_later(self._linger_s, self._exit)

    def _exit(self) -> None:
        self.should_exit = True

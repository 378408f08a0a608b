"""The server process: listen, load the policy, answer, drain on SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

import uvicorn
from starlette.types import ASGIApp

from espalier.config import Profile, ServingConfig
from espalier.determinism import prepare_torch
from espalier.records import ServingError
from espalier.serving.app import Endpoint
from espalier.serving.engine_thread import EngineThread
from espalier.serving.planning import new_seed
from espalier.serving.source import (
    directory_source,
    fetched_version,
    is_reference,
    registry_uri,
)

if TYPE_CHECKING:  # they bring torch, and probes are to be answered before that is there
    from espalier.serving.served_policy import ServedPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What to serve, and where."""

    model: str | None
    """A directory, or a registered version; None waits until a controller names one."""
    digest: str | None = None
    """Digest of the approved policy; None checks none."""
    host: str = "127.0.0.1"
    port: int = 8000
    runs_dir: Path = Path("runs")
    """Its mlflow.db is the registry, where MLFLOW_TRACKING_URI names none."""


def serve(serving: Serving, profile: Profile, say: Callable[[str], None]) -> None:
    """Serve until told to stop.

    Raises:
        ServingError: the address is taken, or the version may not be served.
        PolicyError: the policy cannot be loaded.
        RegistryError: the registry is away, or the version damaged.
    """
    with listening(serving.host, serving.port) as listener, ExitStack() as kept:
        asyncio.run(_serve(serving, profile, listener, kept, say))


async def _serve(
    serving: Serving,
    profile: Profile,
    listener: socket.socket,
    kept: ExitStack,
    say: Callable[[str], None],
) -> None:
    """Answer probes at once, and requests as soon as the policy is loaded.

    "listening on" is printed only then: a policy that may not be served fails before.
    """
    endpoint = Endpoint(profile.serving, new_seed)
    server = DrainingServer(endpoint.app(), profile.serving, endpoint.leave)
    host, port = listener.getsockname()[:2]
    loading = asyncio.create_task(_load(serving, profile, endpoint, kept, say))
    loading.add_done_callback(
        lambda task: _tell_outcome(task, server, f"http://{host}:{port}", say)
    )
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
    if serving.model is None:
        say("no version to serve yet: ESPALIER_MODEL is not set")
        return
    endpoint.wait_for(f"{serving.model} is being loaded")
    say(f"loading {serving.model}")
    opened = await asyncio.to_thread(_opened, serving, profile, kept)
    endpoint.serve(opened.policy, opened.engine)
    say(f"serving {serving.model} as {opened.policy.source.names[0]}")


class _Opened(NamedTuple):
    policy: ServedPolicy
    engine: EngineThread


def _opened(serving: Serving, profile: Profile, kept: ExitStack) -> _Opened:
    assert serving.model is not None, "without a model nothing is opened"
    if is_reference(serving.model):
        uri = registry_uri(serving.runs_dir)
        directory, source = kept.enter_context(fetched_version(uri, serving.model, serving.digest))
    else:
        directory, source = Path(serving.model), directory_source(Path(serving.model))
    from espalier.serving.served_policy import open_policy  # imports torch: after all checks

    prepare_torch(profile.threads)
    policy = open_policy(directory, source, profile.serving, profile.policy.dialect)
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


class DrainingServer(uvicorn.Server):
    """Serves until a signal: SIGTERM drains as a cluster expects, SIGINT stops at once."""

    def __init__(self, app: ASGIApp, config: ServingConfig, on_leaving: Callable[[], None]) -> None:
        """Serve `app`.

        Args:
            app: answers the requests.
            config: times for draining, number of connections.
            on_leaving: called on SIGTERM.
        """
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_level="warning",
                access_log=False,
                server_header=False,
                limit_concurrency=config.max_connections,
                timeout_graceful_shutdown=max(1, round(config.drain_s)),
            )
        )
        self._linger_s = config.linger_s
        self._on_leaving = on_leaving
        self._is_leaving = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain, or stop at once on SIGINT or a second signal."""
        if self._is_leaving or sig == signal.SIGINT:
            self.should_exit = True
            return
        self._is_leaving = True
        # a signal handler may interrupt anything: let the event loop do the work
        asyncio.get_running_loop().call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        self._on_leaving()
        asyncio.get_running_loop().call_later(self._linger_s, self._exit)

    def _exit(self) -> None:
        self.should_exit = True


def listening(host: str, port: int) -> socket.socket:
    """Open the listening socket, before anything is loaded.

    Raises:
        ServingError: there is no such address here, or it is taken.
    """
    try:
        listener = socket.create_server((host, port))
    except (OSError, OverflowError) as error:
        raise ServingError(
            f"{host}:{port}: cannot be served on ({error}). Choose another --host or --port."
        ) from error
    # asyncio sets TCP_NODELAY on what comes in only where the listening socket names its protocol,
    # as Python's does not. Without, a body waits 40 ms for the acknowledgement of its head
    return socket.socket(
        listener.family, listener.type, socket.IPPROTO_TCP, fileno=listener.detach()
    )

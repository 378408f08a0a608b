"""An endpoint from its start to its end: listens, loads, answers, drains."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from espalier.config import Profile
from espalier.determinism import prepare_torch
from espalier.serving.app import Endpoint
from espalier.serving.draining import DrainingServer, listening
from espalier.serving.engine_thread import EngineThread
from espalier.serving.planning import new_seed
from espalier.serving.source import (
    directory_source,
    fetched_version,
    is_reference,
    registry_uri,
)

if TYPE_CHECKING:
    from espalier.serving.served_policy import ServedPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What to serve, and where."""

    model: str | None
    """A directory, or a registered version; None waits: a controller has named none yet."""
    digest: str | None = None
    """Of the version's policy, where somebody approved one."""
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
    """Answer probes at once, and requests as soon as the policy is there.

    That it listens is said when it does: not before a policy is there that may be served.
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
    from espalier.serving.served_policy import open_policy  # torch comes when all else is right

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

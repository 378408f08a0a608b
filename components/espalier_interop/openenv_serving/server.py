"""The server process: loads tasks, listens, and runs sessions until it is interrupted."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from espalier.config import Profile, ServingConfig
from espalier.wire.connections import Places
from espalier.wire.keys import KEYS_VARIABLE, ApiKeys
from espalier.wire.listening import BoundedServer, is_loopback, listening, within_open_files
from espalier_interop.openenv_serving.app import OpenEnvApp
from espalier_interop.openenv_serving.tasks import ServedTasks, tasks_of_profile, tasks_of_run


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentServing:
    """What to serve, and at which address."""

    run_dir: Path | None = None
    """The run whose tasks are served; None serves tasks that the profile's family generates."""
    host: str = "127.0.0.1"
    port: int = 8000


def serve_environment(
    asked: EnvironmentServing, profile: Profile, say: Callable[[str], None]
) -> None:
    """Serve until interrupted.

    Raises:
        ArtifactError: the run has no tasks, or the family needs a run's knowledge.
        ServingError: the address is taken, or the keys cannot be used.
        SandboxError: the profile needs sandboxes, and none can be created.
    """
    keys = ApiKeys.open(profile.serving.api_keys_file, os.environ)
    # child processes, above all programs in sandboxes, must not inherit the keys
    os.environ.pop(KEYS_VARIABLE, None)
    bounds = within_open_files(profile.serving, say)
    if keys is None and not is_loopback(asked.host):
        say(
            f"warning: whoever reaches {asked.host}:{asked.port} may play: there are no API keys. "
            "Make some with `espalier api-key NAME --file FILE`, and set "
            "serving.api_keys_file = FILE"
        )
    opened: AbstractContextManager[ServedTasks] = (
        tasks_of_profile(profile) if asked.run_dir is None else tasks_of_run(asked.run_dir, profile)
    )
    with listening(asked.host, asked.port) as listener, opened as served:
        host, port = listener.getsockname()[:2]
        counts = ", ".join(f"{len(found)} {split}" for split, found in served.tasks.items())
        app = OpenEnvApp(served, profile.serving.environments, bounds, keys)
        server = environment_server(app, bounds)
        say(f"serving {served.name} ({counts}) at http://{host}:{port}")
        asyncio.run(server.serve(sockets=[listener]))


def environment_server(app: OpenEnvApp, bounds: ServingConfig) -> BoundedServer:
    """Return the server of an application, with places for connections and sockets."""
    places = Places(bounds, _NoCounts())
    return BoundedServer(app.app(), places, drain_s=1.0, has_keys=app.has_keys, sockets=True)


class _NoCounts:
    """Connection counters that count nothing, as nobody scrapes this server."""

    def count_closed(self, cause: str) -> None:
        """Do nothing."""

    def count_request(self, route: str, status: int) -> None:
        """Do nothing."""

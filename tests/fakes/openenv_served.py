"""The shop of tests/unit/environments/prices.py behind OpenEnv's protocol, in a thread."""

import asyncio
import threading
from contextlib import contextmanager

from espalier.config import Profile, ServingConfig
from espalier.wire.listening import listening
from espalier_interop.openenv_serving.app import OpenEnvApp
from espalier_interop.openenv_serving.server import environment_server
from espalier_interop.openenv_serving.tasks import tasks_of_profile

SHOP = {"name": "tests.unit.environments.prices:Prices", "rate": 7}


def shop_profile(**environments):
    return Profile.model_validate({"environment": SHOP, "serving": {"environments": environments}})


@contextmanager
def served_shop(*, keys=None, bounds=None, **environments):
    """The address of a server, and its application; ended with the block."""
    profile = shop_profile(**environments)
    with (
        tasks_of_profile(profile) as served,
        served_tasks(served, profile.serving.environments, keys=keys, bounds=bounds) as found,
    ):
        yield found


@contextmanager
def served_tasks(served, config, *, keys=None, bounds=None):
    app = OpenEnvApp(served, config, bounds or ServingConfig(), keys)
    server = environment_server(app, bounds or ServingConfig())
    with listening("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(
            target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True
        )
        thread.start()
        try:
            while not server.started:
                threading.Event().wait(0.005)
            yield f"http://127.0.0.1:{port}", app
        finally:
            server.should_exit = server.force_exit = True
            thread.join(10)
            assert not thread.is_alive()

"""What rollout workers on the nodes of a Ray cluster play in the tests."""

import os
import time
from contextlib import contextmanager

import ray

from tests.factories.tiny import lookup_environments
from tests.factories.training import SEARCH

EVERYWHERE = "everywhere"


class NotedSearch:
    """Notes the process of every call; one that is held on its node does not return."""

    def __init__(self, folder):
        self._folder = folder
        self._holds = [
            folder / f"hold-{where}"
            for where in (EVERYWHERE, ray.get_runtime_context().get_node_id())
        ]

    def observation(self, query):
        (self._folder / f"played-{os.getpid()}").touch()
        while any(hold.exists() for hold in self._holds):
            (self._folder / f"held-{os.getpid()}").touch()
            time.sleep(0.01)
        return SEARCH.observation(query)


@contextmanager
def noted_environments(profile, folder):
    (folder / f"opened-{os.getpid()}").touch()
    yield lambda _: lookup_environments(NotedSearch(folder), profile)


def pids_of(folder, what):
    """Processes that have opened their environments, have played, or were held."""
    return {int(path.name.partition("-")[2]) for path in folder.glob(f"{what}-*")}

"""Where the other processes of a training start: on this machine, or on the nodes of Ray."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from espalier.determinism import RAY_DRIVER_VARIABLE, prepared_environment
from espalier.training.companions import MakesCompanions
from espalier.training.local_companions import local_companions


def companions_here(environment: Mapping[str, str]) -> MakesCompanions:
    """On all nodes of the Ray cluster for the driver of a RayJob, else on this machine."""
    if not environment.get(RAY_DRIVER_VARIABLE):
        return local_companions
    from espalier.training.ray_nodes import ray_companions

    return partial(ray_companions, environment=prepared_environment())

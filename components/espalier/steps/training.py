"""The stage `train` with whoever poses its tasks, and with the place of its other processes.

Stages meet in artifacts and not in imports; what training needs of synthesis while it runs is
handed to it here. So is where its companions start, which is a matter of where the step runs.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from espalier.artifacts import Manifest, Tracker
from espalier.cluster.objects.job import RAY_DRIVER_VARIABLE
from espalier.config import Profile
from espalier.steps.determinism import prepared_environment
from espalier.synthesis.posing import poser_of
from espalier.training.companions import MakesCompanions
from espalier.training.local_companions import local_companions
from espalier.training.rl import stage

Inputs = stage.Inputs


def run(profile: Profile, inputs: Inputs, output_dir: Path, tracker: Tracker) -> Manifest:
    """Train, with self-play where the profile asks for it; see `training.rl.stage`."""
    return stage.run(profile, inputs, output_dir, tracker, poser_of, _companions())


def _companions() -> MakesCompanions:
    """On all nodes of the Ray cluster for the driver of a RayJob, else on this machine."""
    if not os.environ.get(RAY_DRIVER_VARIABLE):
        return local_companions
    from espalier.training.ray_nodes import ray_companions

    return partial(ray_companions, environment=prepared_environment())

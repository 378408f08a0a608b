"""The stage `train` with whoever poses its tasks: where training and synthesis meet.

Stages meet in artifacts and not in imports; what training needs of synthesis while it runs is
handed to it here.
"""

from __future__ import annotations

from pathlib import Path

from espalier.artifacts import Manifest, Tracker
from espalier.config import Profile
from espalier.synthesis.posing import poser_of
from espalier.training.rl import stage

Inputs = stage.Inputs


def run(profile: Profile, inputs: Inputs, output_dir: Path, tracker: Tracker) -> Manifest:
    """Train, with self-play where the profile asks for it; see `training.rl.stage`."""
    return stage.run(profile, inputs, output_dir, tracker, poser_of)

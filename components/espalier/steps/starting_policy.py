"""Which model a run starts from: what `policy.start = "champion"` means in files."""

from __future__ import annotations

import os
from pathlib import Path

from espalier.config import Profile
from espalier.records import RegistryError

CHAMPION_FOLDER = "champion"


def with_starting_policy(profile: Profile, folder: Path) -> Profile:
    """The same profile, with the champion's directory in the place of `start = "champion"`.

    The champion is fetched once: a resumed run goes on with the one that it began with, even if
    another has been promoted since.

    Args:
        profile: what to run.
        folder: where the champion's files go, in a folder of their own.

    Raises:
        RegistryError: the model has no champion, its files are not those registered, or no
            tracking server is known.
    """
    if profile.policy.start != "champion":
        return profile
    destination = (folder / CHAMPION_FOLDER).resolve()
    if not destination.exists():
        from espalier.registry.model import champion_policy

        tracking_uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not tracking_uri:
            raise RegistryError(
                'policy.start = "champion" needs the registry: set MLFLOW_TRACKING_URI'
            )
        champion_policy(tracking_uri, profile.registry.model_name, destination)
    policy = profile.policy.model_copy(update={"start": "base", "model": destination})
    return profile.model_copy(update={"policy": policy})

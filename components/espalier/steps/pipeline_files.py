"""Where the pipeline definitions and the profiles are: a checkout's folder, or the wheel's data."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import espalier
from espalier.records import ProfileError


def pipelines_dir() -> Path:
    """The folder that holds `data_to_model.py` and `profiles/`.

    A checkout (the package lies in `components/espalier` beside `pipelines/`) uses its own folder,
    so that an edited profile counts at once; an installed wheel carries a copy.

    Raises:
        ProfileError: neither is there; the installation is broken.
    """
    package = Path(str(resources.files(espalier)))
    checkout = package.parent.parent / "pipelines"
    if package.parent.name == "components" and checkout.is_dir():
        return checkout
    packaged = package / "_pipelines"
    if packaged.is_dir():
        return packaged
    raise ProfileError(
        f"no pipelines beside {package}: neither {checkout} nor {packaged} is there. "
        "Install espalier again"
    )


def profile_names() -> list[str]:
    """Names of the profiles that come with espalier."""
    return sorted(path.stem for path in (pipelines_dir() / "profiles").glob("*.toml"))

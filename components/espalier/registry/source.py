"""What made a run: the version of the package, its commit, and who ran it."""

from __future__ import annotations

import getpass
import subprocess
from functools import cache
from pathlib import Path

import espalier

_GIT_TIMEOUT_S = 5.0


@cache
def source_tags() -> dict[str, str]:
    """MLflow's own tags of a run's source, as far as they are known here."""
    package = Path(espalier.__file__).parent
    tags = {
        "mlflow.user": operator(),
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": "espalier",
        "espalier.version": espalier.__version__,
    }
    if commit := commit_of(package):
        tags["mlflow.source.git.commit"] = commit
        tags["mlflow.source.git.dirty"] = str(bool(_git(package, "status", "--porcelain", ".")))
    return tags


def commit_of(package: Path) -> str | None:
    """The commit of the checkout that holds `package`; None where it is installed.

    An installed package may lie below another project's checkout, whose commit says nothing of it:
    so git has to know the package's own files.
    """
    if _git(package, "ls-files", "__init__.py") != "__init__.py":
        return None
    return _git(package, "rev-parse", "HEAD")


def operator() -> str:
    """The user's name, or "unknown"."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's numeric user has no name
        return "unknown"


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints, without the line's end; None where it is missing, slow or refuses."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            check=True,
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()

"""A run folder as commands read it afterwards: its profile and its artifacts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from espalier.config import Profile
from espalier.orchestration.run_directory import PROFILE_NAME
from espalier.records import ArtifactError
from espalier.steps.profiles import parsed_profile


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run's folder and the profile that filled it."""

    path: Path
    profile: Profile

    def folder(self, artifact: str) -> Path:
        """Where an artifact of the chain lies, published or not."""
        return self.path / artifact


def open_finished_run(run_dir: Path) -> FinishedRun:
    """Read a run's profile.

    Raises:
        ArtifactError: no run was ever started in that folder.
        ProfileError: its profile is not one of this version.
    """
    path = run_dir / PROFILE_NAME
    if not path.is_file():
        raise ArtifactError(
            f"{run_dir}: not the folder of a run (no {PROFILE_NAME}). Give the folder that "
            "`espalier run --out` filled"
        )
    return FinishedRun(run_dir, parsed_profile(path.read_text(encoding="utf-8")))

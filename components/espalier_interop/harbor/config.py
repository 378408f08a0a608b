"""Section `[environment]` of a profile whose tasks are Harbor's folders."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from espalier.config import (
    MOST_PROGRAM_S,
    EnvironmentConfig,
    LocalSandboxConfig,
    SandboxConfig,
)

NeedKind = Literal[
    "image", "run", "network", "compose", "accelerator", "os", "steps", "servers", "verifier",
    "user", "variables", "paths", "tests",
]  # fmt: skip
"""Kinds of requirements of a task that a sandbox does not meet by itself."""


class HarborConfig(EnvironmentConfig):
    """Task folders, and which of their requirements the sandbox meets."""

    name: str = "harbor"
    folders: Path | None = None
    """A task folder, or a folder that contains task folders at any depth."""
    ignored_needs: tuple[NeedKind, ...] = ()
    """Requirements that the sandbox does meet, for example "image" and "run" if its image was built
    from the task's Dockerfile."""
    skip_refused: bool = False
    """Whether to leave out tasks with unmet requirements; otherwise they are an error."""
    reward_key: str = "reward"
    """Key of the outcome in a reward.json with several values."""
    rewards: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest reward that a verifier gives; a reward outside ends the run with an
    error."""
    command_timeout_s: float = Field(default=30.0, gt=0, le=MOST_PROGRAM_S)
    """Time limit of a command of the policy."""
    verifier_timeout_s: float = Field(default=60.0, gt=0, le=MOST_PROGRAM_S)
    """Time limit of a task's tests, if the task's own limit is longer; a sandbox runs no program
    longer."""
    max_observation_characters: int = Field(default=4000, ge=80)
    """Longer output of a command is cut in its middle."""
    sandbox: SandboxConfig = LocalSandboxConfig(packages=())
    disk_mb: int = Field(default=64, ge=8, le=4096)
    """Disk space of a sandbox, for files of a task and files made from them."""

    @model_validator(mode="after")
    def _rewards_are_a_range(self) -> Self:
        low, high = self.rewards
        if not low < high:
            raise ValueError(f"rewards={self.rewards}: the first is the least, the second the most")
        return self

    def external_files(self) -> dict[str, Path | None]:
        """Return the folders, by the key of the profile that names them."""
        return {"environment.folders": self.folders}

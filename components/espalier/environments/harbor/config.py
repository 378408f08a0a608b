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
"""What a task may need that a sandbox does not have by itself."""


class HarborConfig(EnvironmentConfig):
    """Task folders, and what the sandbox has of what they need."""

    name: str = "harbor"
    folders: Path | None = None
    """A task folder, or a folder with task folders in it, at any depth."""
    ignored_needs: tuple[NeedKind, ...] = ()
    """Needs that the sandbox meets all the same, as an image built from a task's Dockerfile does
    for "image" and "run"."""
    skip_refused: bool = False
    """Leave out tasks whose needs are not met; otherwise one of them is an error."""
    reward_key: str = "reward"
    """The value of reward.json that is the outcome, where it has several."""
    rewards: tuple[float, float] = (0.0, 1.0)
    """Least and most that a verifier gives; others end the run."""
    command_timeout_s: float = Field(default=30.0, gt=0, le=MOST_PROGRAM_S)
    """Of a command of the policy."""
    verifier_timeout_s: float = Field(default=60.0, gt=0, le=MOST_PROGRAM_S)
    """Of a task's tests, where its own limit is longer; a sandbox runs no program for longer."""
    max_observation_characters: int = Field(default=4000, ge=80)
    """More of a command's output is cut out of its middle."""
    sandbox: SandboxConfig = LocalSandboxConfig(packages=())
    disk_mb: int = Field(default=64, ge=8, le=4096)
    """Of a sandbox: files of a task, and what is made of them."""

    @model_validator(mode="after")
    def _rewards_are_a_range(self) -> Self:
        low, high = self.rewards
        if not low < high:
            raise ValueError(f"rewards={self.rewards}: the first is the least, the second the most")
        return self

    def external_files(self) -> dict[str, Path | None]:
        """See `EnvironmentConfig`."""
        return {"environment.folders": self.folders}

"""Settings of software repair."""

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
from espalier.config.data import EachOnce, Section

Domain = Literal["inventory", "schedule", "geometry", "parsing", "text"]
MutationKind = Literal[
    "operator", "comparison", "off_by_one", "constant", "call", "name", "swapped", "slice", "branch"
]


class RepositoriesConfig(Section):
    """The repositories that are generated if `instances` is unset."""

    seed: int = 0
    """Seed of repositories and mutations; equal for runs that are to be compared."""
    domains: EachOnce[Domain] = ("inventory", "schedule", "geometry", "parsing", "text")
    """Topics of the repositories."""
    mutations: EachOnce[MutationKind] = (
        "operator", "comparison", "off_by_one", "constant", "call", "name", "swapped", "slice",
        "branch",
    )  # fmt: skip
    """Kinds of mutation of a line."""
    callee_share: float = Field(default=0.3, ge=0, le=1)
    """Share of tasks whose fault is in a function called by the one in the issue."""
    max_steps: int = Field(default=3, ge=1, le=5)
    """Most lines of a function between its first and its last."""
    tasks_per_repository: int = Field(default=4, ge=1, le=16)
    """Mutations of one repository, each of which is a task."""


class SoftwareRepairConfig(EnvironmentConfig):
    """Faults in repositories that hidden tests detect, as in SWE-bench."""

    name: str = "software_repair"
    instances: Path | None = None
    """File of SWE-bench's rows for training, split by repository. If unset, repositories and their
    faults are generated."""
    snapshots: Path | None = None
    """Folder with a checkout (or .tar, .tar.gz) for each instance id, without its history."""
    answer: Literal["tree", "diff", "search_replace"] = "tree"
    """What is judged: the edited tree, or the final message: a unified diff, or SWE-RL's blocks."""
    outcome: Literal["tests", "swe_rl"] = "tests"
    """Whether hidden tests judge, or the patch's similarity to the gold patch (-1 to 1)."""
    shell: bool = True
    """Whether the policy may run commands, in a sandbox that holds its tree."""
    shell_timeout_s: float = Field(default=20.0, gt=0, le=MOST_PROGRAM_S)
    """Time limit of a command; the policy reads when it is exceeded."""
    tests_timeout_s: float = Field(default=20.0, gt=0, le=MOST_PROGRAM_S)
    """Time limit of all hidden tests together; tests that have not ended by then have failed."""
    max_observation_characters: int = Field(default=4000, ge=64)
    """Longer observations are cut in their middle."""
    ignored_leaks: tuple[str, ...] = ()
    """Patterns of paths that the scan for leaks ignores; a person should have checked them."""
    repositories: RepositoriesConfig = RepositoriesConfig()
    disk_mb: int = Field(default=32, ge=8, le=4096)
    """Space in a sandbox for the repository and what programs write, MiB."""
    sandbox: SandboxConfig = LocalSandboxConfig(packages=())

    def external_files(self) -> dict[str, Path | None]:
        """Return the file of instances, by the key of the profile that names it."""
        return {"environment.instances": self.instances}

    @model_validator(mode="after")
    def _tests_need_a_repository(self) -> Self:
        if self.instances is not None and self.snapshots is None and self.outcome == "tests":
            raise ValueError(
                "environment.instances needs environment.snapshots, the repositories to run tests "
                'in; without them set environment.outcome = "swe_rl" and answer = "diff"'
            )
        return self

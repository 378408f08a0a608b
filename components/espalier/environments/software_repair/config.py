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
    """The repositories that are made where `instances` is unset."""

    seed: int = 0
    """Of repositories and mutations: the same for every run that compares with another."""
    domains: EachOnce[Domain] = ("inventory", "schedule", "geometry", "parsing", "text")
    """What the repositories are about."""
    mutations: EachOnce[MutationKind] = (
        "operator", "comparison", "off_by_one", "constant", "call", "name", "swapped", "slice",
        "branch",
    )  # fmt: skip
    """How a line is spoilt."""
    callee_share: float = Field(default=0.3, ge=0, le=1)
    """Share of the tasks whose fault is in a function that the one of the issue calls."""
    max_steps: int = Field(default=3, ge=1, le=5)
    """Lines of a function between its first and its last."""
    tasks_per_repository: int = Field(default=4, ge=1, le=16)
    """Mutations of one repository, each a task."""


class SoftwareRepairConfig(EnvironmentConfig):
    """Faults of repositories that hidden tests notice, as SWE-bench has them."""

    name: str = "software_repair"
    instances: Path | None = None
    """File of SWE-bench's rows to train on, dealt to splits by repository. Unset makes
    repositories and their faults."""
    snapshots: Path | None = None
    """Folder with a checkout (or .tar, .tar.gz) for each instance id, without its history."""
    answer: Literal["tree", "diff", "search_replace"] = "tree"
    """What is judged: the edited tree, or what the final message says: a unified diff, or SWE-RL's
    blocks."""
    outcome: Literal["tests", "swe_rl"] = "tests"
    """Whether hidden tests judge, or the patch's likeness to the gold patch (-1 to 1)."""
    shell: bool = True
    """Whether the policy may run commands, in a sandbox that holds its tree."""
    shell_timeout_s: float = Field(default=20.0, gt=0, le=MOST_PROGRAM_S)
    """A command that takes longer is ended, and the policy reads so."""
    tests_timeout_s: float = Field(default=20.0, gt=0, le=MOST_PROGRAM_S)
    """Of the hidden tests together; those that have not ended by then have failed."""
    max_observation_characters: int = Field(default=4000, ge=64)
    """More than this of an observation is cut out of its middle."""
    ignored_leaks: tuple[str, ...] = ()
    """Patterns of paths that the scan for leaks passes over, once a person has looked at them."""
    repositories: RepositoriesConfig = RepositoriesConfig()
    disk_mb: int = Field(default=32, ge=8, le=4096)
    """Space in a sandbox for the repository and what programs write, MiB."""
    sandbox: SandboxConfig = LocalSandboxConfig(packages=())

    def external_files(self) -> dict[str, Path | None]:
        """See `EnvironmentConfig`."""
        return {"environment.instances": self.instances}

    @model_validator(mode="after")
    def _tests_need_a_repository(self) -> Self:
        if self.instances is not None and self.snapshots is None and self.outcome == "tests":
            raise ValueError(
                "environment.instances needs environment.snapshots, the repositories to run tests "
                'in; without them set environment.outcome = "swe_rl" and answer = "diff"'
            )
        return self

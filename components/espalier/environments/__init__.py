"""Environments: the contract of episodes, and one folder for each family of tasks."""

from espalier.environments.contract import (
    Environment,
    EnvironmentLostError,
    Environments,
    EnvironmentsOver,
    Opening,
    ProgramBrokeSandboxError,
    Step,
)
from espalier.environments.episode import AsyncToolEnvironment, EpisodeRules, ToolEnvironment
from espalier.environments.family import (
    Family,
    FamilyQuestion,
    PlainQuestion,
    SimpleFamily,
    dealt_split,
    family_of,
    make_task,
    policy_dialect,
)
from espalier.environments.reading import Log, ReadingMaterial
from espalier.environments.teaching import GaveUp, Observed, Script
from espalier.environments.tools import Tool, ToolError, ToolOutput

__all__ = [
    "AsyncToolEnvironment",
    "Environment",
    "EnvironmentLostError",
    "Environments",
    "EnvironmentsOver",
    "EpisodeRules",
    "Family",
    "FamilyQuestion",
    "GaveUp",
    "Log",
    "Observed",
    "Opening",
    "PlainQuestion",
    "ProgramBrokeSandboxError",
    "ReadingMaterial",
    "Script",
    "SimpleFamily",
    "Step",
    "Tool",
    "ToolEnvironment",
    "ToolError",
    "ToolOutput",
    "dealt_split",
    "family_of",
    "make_task",
    "policy_dialect",
]

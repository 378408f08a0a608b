"""Environments: the contract of episodes, and one folder per family of tasks."""

from espalier.environments.benchmarks import (
    BenchmarkRow,
    GoldCheck,
    GoldFault,
    benchmark_tasks,
    check_golds,
    read_objects,
    read_rows,
)
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
from espalier.environments.hindsight import Achieved, Hindsight
from espalier.environments.reading import Log, ReadingMaterial
from espalier.environments.teaching import GaveUp, Observed, Script
from espalier.environments.tools import Tool, ToolError, ToolOutput

__all__ = [
    "Achieved",
    "AsyncToolEnvironment",
    "BenchmarkRow",
    "Environment",
    "EnvironmentLostError",
    "Environments",
    "EnvironmentsOver",
    "EpisodeRules",
    "Family",
    "FamilyQuestion",
    "GaveUp",
    "GoldCheck",
    "GoldFault",
    "Hindsight",
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
    "benchmark_tasks",
    "check_golds",
    "dealt_split",
    "family_of",
    "make_task",
    "policy_dialect",
    "read_objects",
    "read_rows",
]

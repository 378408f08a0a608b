"""Settings of programming tasks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from espalier.config import (
    MOST_PROGRAM_S,
    EnvironmentConfig,
    LocalSandboxConfig,
    SandboxConfig,
)
from espalier.config.data import EachOnce
from espalier.rewards.unit_tests import UnitTestRule
from espalier_environments.code.grammar import Kind

GRACE_S = 5.0
"""Added to the time of a program's tests, so that two runs can start side by side on a busy machine
and the verdict can be written."""
ToolName = Literal["run_tests", "python"]


class CodeConfig(EnvironmentConfig):
    """Programs that are judged by unit tests in sandboxes."""

    name: str = "code"
    tools: tuple[ToolName, ...] = ("run_tests",)
    """Tools that the policy may call: "run_tests" runs the visible tests, "python" any program.
    Without tools, the policy answers at once."""
    reward: UnitTestRule = "all"
    """Outcome of a program: "all" (all tests or nothing), "share" (of its tests), or CodeRL's
    scale."""
    compile_weight: float = Field(default=0.0, ge=0, le=0.25)
    """Weight of PPOCoder's compiler signal as a separate term: added if the program compiles,
    subtracted if not."""
    syntax_weight: float = Field(default=0.0, ge=0, le=0.25)
    """Weight of PPOCoder's syntax-tree match with the gold program as a separate term, from 0 to
    this weight; 0 for a program that does not compile."""
    data_flow_weight: float = Field(default=0.0, ge=0, le=0.25)
    """Weight of PPOCoder's data-flow match with the gold program, in the same way."""
    kinds: EachOnce[Kind] = ("numbers", "words")
    """Kinds of lists that generated tasks are about."""
    hidden_tests: int = Field(default=8, ge=4, le=64)
    """Number of tests that judge the program of a generated task."""
    visible_tests: int = Field(default=2, ge=0, le=16)
    """Number of tests of a generated task that the policy may run."""
    shown_tests: int = Field(default=3, ge=0, le=16)
    """Number of tests of an MBPP row that the prompt shows and the policy may run; upstream shows
    three."""
    test_timeout_s: float = Field(default=5.0, gt=0, le=MOST_PROGRAM_S - GRACE_S)
    """Processor time of all tests of a program together, which may take twice as long by the
    clock. HumanEval's own is 3 s by the clock; a gold program of MBPP needs 3.1."""
    code_timeout_s: float = Field(default=5.0, gt=0, le=MOST_PROGRAM_S)
    """Time limit of a program run by the tool `python`."""
    max_observation_characters: int = Field(default=512, ge=16)
    """Longer observations are cut in their middle."""
    sandbox: SandboxConfig = LocalSandboxConfig()

    @field_validator("tools")
    @classmethod
    def _each_stands_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError("a name is given twice")
        return names

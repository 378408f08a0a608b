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
from espalier.environments.code.grammar import Kind
from espalier.rewards import UnitTestRule

GRACE_S = 5.0
"""Beyond the time of a program's tests: for two runs to start beside each other on a busy machine,
and the verdict to be written."""
ToolName = Literal["run_tests", "python"]


class CodeConfig(EnvironmentConfig):
    """Programs that are judged by unit tests in sandboxes."""

    name: str = "code"
    tools: tuple[ToolName, ...] = ("run_tests",)
    """What the policy may call: "run_tests" runs the visible tests, "python" any program. With none
    it answers at once."""
    reward: UnitTestRule = "all"
    """What a program is worth: "all" or nothing, "share" of its tests, or CodeRL's scale."""
    compile_weight: float = Field(default=0.0, ge=0, le=0.25)
    """PPOCoder's compiler signal as a term of its own: paid for a program that compiles, and taken
    for one that does not."""
    syntax_weight: float = Field(default=0.0, ge=0, le=0.25)
    """PPOCoder's syntax-tree match with the gold program as a term, 0 to this weight; what does not
    compile has 0."""
    data_flow_weight: float = Field(default=0.0, ge=0, le=0.25)
    """PPOCoder's data-flow match with the gold program, likewise."""
    kinds: EachOnce[Kind] = ("numbers", "words")
    """Lists that the made tasks are about."""
    hidden_tests: int = Field(default=8, ge=4, le=64)
    """Tests that judge a made task's program."""
    visible_tests: int = Field(default=2, ge=0, le=16)
    """Tests of a made task that the policy may run."""
    shown_tests: int = Field(default=3, ge=0, le=16)
    """Tests of an MBPP row that the prompt shows and the policy may run; upstream shows three."""
    test_timeout_s: float = Field(default=3.0, gt=0, le=MOST_PROGRAM_S - GRACE_S)
    """For all tests of a program together; HumanEval's own is 3 s."""
    code_timeout_s: float = Field(default=5.0, gt=0, le=MOST_PROGRAM_S)
    """For a program of the tool `python`."""
    max_observation_characters: int = Field(default=512, ge=16)
    """More than this of an observation is cut out of its middle."""
    sandbox: SandboxConfig = LocalSandboxConfig()

    @field_validator("tools")
    @classmethod
    def _each_stands_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError("a name stands twice")
        return names

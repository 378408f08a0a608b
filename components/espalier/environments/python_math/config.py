"""Settings of mathematics with a Python interpreter."""

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


class PythonMathConfig(EnvironmentConfig):
    """Mathematics with a Python interpreter, as ReTool has it (arXiv:2504.11536)."""

    name: str = "python_math"
    problems: Path | None = None
    """JSON lines of {question, answer} in GSM8K's format; unset makes arithmetic word problems."""
    heldout_problems: Path | None = None
    """The held-out ones in a file of their own; unset deals `problems` out by [splits]."""
    session: Literal["stateless", "stateful"] = "stateless"
    """Whether a program finds the names of the programs before it in the same episode."""
    code_timeout_s: float = Field(default=5.0, gt=0, le=MOST_PROGRAM_S)
    """A program that takes longer is ended, and the policy reads so."""
    max_observation_characters: int = Field(default=512, ge=16)
    """More than this of a program's output is cut out of its middle."""
    credit_per_message: float = Field(default=0.0, ge=0, le=0.2)
    """What a wrong answer is forgiven for each message beyond two; verl's recipe has 0.05."""
    sandbox: SandboxConfig = LocalSandboxConfig()

    def external_files(self) -> dict[str, Path | None]:
        """See `EnvironmentConfig`."""
        return {
            "environment.problems": self.problems,
            "environment.heldout_problems": self.heldout_problems,
        }

    @model_validator(mode="after")
    def _heldout_problems_go_with_problems(self) -> Self:
        if self.heldout_problems is not None and self.problems is None:
            raise ValueError("environment.heldout_problems needs environment.problems, to train on")
        return self

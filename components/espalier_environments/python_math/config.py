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
    """Mathematics with a Python interpreter, as in ReTool (arXiv:2504.11536)."""

    name: str = "python_math"
    problems: Path | None = None
    """JSON lines of {question, answer} in GSM8K's format; unset generates arithmetic word
    problems."""
    heldout_problems: Path | None = None
    """A separate file of held-out problems; unset splits `problems` by [splits]."""
    session: Literal["stateless", "stateful"] = "stateless"
    """Whether a program sees the names of earlier programs in the same episode ("stateful")."""
    code_timeout_s: float = Field(default=5.0, gt=0, le=MOST_PROGRAM_S)
    """Time limit of a program; the policy reads when it is exceeded."""
    max_observation_characters: int = Field(default=512, ge=16)
    """Longer output of a program is cut in its middle."""
    credit_per_message: float = Field(default=0.0, ge=0, le=0.2)
    """Credit that a wrong answer gets for each message beyond two; verl's recipe uses 0.05."""
    sandbox: SandboxConfig = LocalSandboxConfig()

    def external_files(self) -> dict[str, Path | None]:
        """Return the problem files, by the key of the profile that names them."""
        return {
            "environment.problems": self.problems,
            "environment.heldout_problems": self.heldout_problems,
        }

    @model_validator(mode="after")
    def _heldout_problems_go_with_problems(self) -> Self:
        if self.heldout_problems is not None and self.problems is None:
            raise ValueError("environment.heldout_problems needs environment.problems, to train on")
        return self

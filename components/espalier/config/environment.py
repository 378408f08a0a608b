"""Profile section `environment`: where the tasks are played, by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from espalier.config.data import Section


class SearchQAConfig(Section):
    """Question answering over the knowledge; [search] describes its tool."""

    name: Literal["search_qa"] = "search_qa"


class SandboxConfig(Section):
    """Where the policy's programs run, and how many places there are."""

    backend: Literal["local", "podman", "kubernetes"] = "local"
    """"local" isolates with bubblewrap on this machine; "podman" needs an image here, "kubernetes"
    one that the cluster of [kubernetes] can pull."""
    image: str = ""
    """Of sandbox-images/, by digest or by a tag that is never moved; unset for "local"."""
    kubeconfig: Path | None = None
    """Of the cluster; unset is the one that the stage itself runs in."""
    packages: tuple[str, ...] = ("numpy", "sympy")
    """Python packages of this machine that programs may import; an image has its own."""
    size: int = Field(default=4, ge=1)
    """Sandboxes at one time."""
    max_uses: int = Field(default=256, ge=1)
    """A sandbox is replaced after so many borrowers."""
    memory_mb: int = Field(default=256, ge=32)
    """Of one program."""

    @model_validator(mode="after")
    def _containers_have_an_image(self) -> Self:
        if (self.backend == "local") == bool(self.image):
            raise ValueError(
                f"environment.sandbox.image={self.image!r} does not go with backend="
                f'"{self.backend}": name an image of sandbox-images/ for podman and kubernetes, '
                "and none for local"
            )
        return self


class PythonMathConfig(Section):
    """Mathematics with a Python interpreter, in the tags of ReTool (arXiv:2504.11536)."""

    name: Literal["python_math"] = "python_math"
    problems: Path | None = None
    """JSON lines of {question, answer} in GSM8K's format; unset makes arithmetic word problems."""
    heldout_problems: Path | None = None
    """The held-out ones in a file of their own; unset deals `problems` out by [splits]."""
    session: Literal["stateless", "stateful"] = "stateless"
    """Whether a program finds the names of the programs before it in the same episode."""
    code_timeout_s: float = Field(default=5.0, gt=0)
    """A program that takes longer is ended, and the policy reads so."""
    max_observation_characters: int = Field(default=512, ge=16)
    """More than this of a program's output is cut out of its middle."""
    credit_per_message: float = Field(default=0.0, ge=0, le=0.2)
    """What a wrong answer is forgiven for each message beyond two; verl's recipe has 0.05."""
    sandbox: SandboxConfig = SandboxConfig()

    @model_validator(mode="after")
    def _heldout_problems_go_with_problems(self) -> Self:
        if self.heldout_problems is not None and self.problems is None:
            raise ValueError("environment.heldout_problems needs environment.problems, to train on")
        return self


EnvironmentConfig = Annotated[SearchQAConfig | PythonMathConfig, Field(discriminator="name")]

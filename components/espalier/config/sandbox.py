"""Where a policy's programs run, by backend, and how many places there are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import BeforeValidator, Field

from espalier.config.data import Section


class _SandboxConfig(Section):
    size: int = Field(default=4, ge=1)
    """Sandboxes at one time."""
    max_uses: int = Field(default=256, ge=1)
    """A sandbox is replaced after so many borrowers."""
    memory_mb: int = Field(default=256, ge=32)
    """Memory limit per program, MiB."""


class LocalSandboxConfig(_SandboxConfig):
    """Isolated with bubblewrap on this machine: no root, no image."""

    backend: Literal["local"] = "local"
    packages: tuple[str, ...] = ("numpy", "sympy")
    """Python packages of this machine that programs may import."""


class PodmanSandboxConfig(_SandboxConfig):
    """Podman containers on this machine."""

    backend: Literal["podman"] = "podman"
    image: str = Field(min_length=1)
    """Of sandbox-images/, by digest or by a tag that is never moved."""


class KubernetesSandboxConfig(_SandboxConfig):
    """Pods of the cluster that [kubernetes] describes."""

    backend: Literal["kubernetes"] = "kubernetes"
    image: str = Field(min_length=1)
    """One that the cluster can pull, by digest or by a tag that is never moved."""
    kubeconfig: Path | None = None
    """Of the cluster; unset is the one that the stage itself runs in."""


def _local_unless_named(content: object) -> object:
    if not isinstance(content, dict):
        return content
    return {"backend": "local", **cast("dict[str, object]", content)}


SandboxConfig = Annotated[
    Annotated[
        LocalSandboxConfig | PodmanSandboxConfig | KubernetesSandboxConfig,
        Field(discriminator="backend"),
    ],
    BeforeValidator(_local_unless_named),
]

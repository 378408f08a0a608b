"""Sandboxes: where an agent's programs run, behind one protocol and several backends."""

from espalier.sandbox.kubernetes import KubernetesBackend
from espalier.sandbox.local import LocalBackend
from espalier.sandbox.podman import PodmanBackend
from espalier.sandbox.pool import PoolSettings, SandboxPool
from espalier.sandbox.protocol import (
    Backend,
    ExecResult,
    Limits,
    Sandbox,
    SandboxError,
    SandboxLost,
    SandboxQuota,
    SandboxRefused,
    SandboxTimeout,
    SandboxUnavailable,
)

__all__ = [
    "Backend",
    "ExecResult",
    "KubernetesBackend",
    "Limits",
    "LocalBackend",
    "PodmanBackend",
    "PoolSettings",
    "Sandbox",
    "SandboxError",
    "SandboxLost",
    "SandboxPool",
    "SandboxQuota",
    "SandboxRefused",
    "SandboxTimeout",
    "SandboxUnavailable",
]

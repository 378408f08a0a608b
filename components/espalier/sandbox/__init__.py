"""Sandboxes: where an agent's programs run, behind one protocol and several backends."""

from espalier.sandbox.errors import (
    SandboxError,
    SandboxLost,
    SandboxQuota,
    SandboxRefused,
    SandboxTimeout,
    SandboxUnavailable,
)
from espalier.sandbox.kubernetes import KubernetesBackend
from espalier.sandbox.local import LocalBackend
from espalier.sandbox.podman import PodmanBackend
from espalier.sandbox.pool import SandboxPool
from espalier.sandbox.pool_settings import PoolSettings
from espalier.sandbox.protocol import Backend, ExecResult, Limits, Sandbox

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

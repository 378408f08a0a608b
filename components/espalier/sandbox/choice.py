"""The pool of sandboxes that a profile asks for."""

from __future__ import annotations

import secrets

from espalier.config import KubernetesConfig, SandboxConfig
from espalier.sandbox.kubernetes import KubernetesBackend
from espalier.sandbox.local import LocalBackend
from espalier.sandbox.pod import SandboxPodSettings
from espalier.sandbox.podman import PodmanBackend
from espalier.sandbox.pool_settings import PoolSettings
from espalier.sandbox.pool_thread import PoolThread
from espalier.sandbox.protocol import Backend, Limits

_MIB = 2**20
_DISK_BYTES = 32 * _MIB
_OUTPUT_BYTES = 64 * 1024
"""A policy reads a few hundred characters of it."""
_WALL_S = 60.0
"""The ceiling; what runs names a shorter time itself."""
_CLAIM_WITHIN_S = 1800.0
"""Hundreds of episodes share a few sandboxes, so waiting is no fault of the sandboxes; how long an
episode may wait is said by rollout.tool_timeout_s."""


def sandbox_pool(config: SandboxConfig, cluster: KubernetesConfig) -> PoolThread:
    """A pool for short programs, not opened yet."""
    settings = PoolSettings(
        size=config.size,
        low_water=min(1, config.size),
        high_water=config.size,
        max_uses=config.max_uses,
        claim_timeout_s=_CLAIM_WITHIN_S,
    )
    return PoolThread(_backend(config, cluster), settings)


def _backend(config: SandboxConfig, cluster: KubernetesConfig) -> Backend:
    limits = Limits(
        memory_bytes=config.memory_mb * _MIB,
        disk_bytes=_DISK_BYTES,
        output_bytes=_OUTPUT_BYTES,
        wall_s=_WALL_S,
    )
    match config.backend:
        case "local":
            return LocalBackend(limits=limits, packages=config.packages, preimport=())
        case "podman":
            return PodmanBackend(image=config.image, limits=limits, preimport=())
        case "kubernetes":
            pods = SandboxPodSettings(
                image=config.image,
                namespace=cluster.sandbox_namespace,
                pods=cluster.sandboxes,
                labels=cluster.labels,
            )
            return KubernetesBackend(
                settings=pods,
                run_id=f"episodes-{secrets.token_hex(4)}",
                limits=limits,
                preimport=(),
                kubeconfig=config.kubeconfig,
                warm_pods=config.size,
            )

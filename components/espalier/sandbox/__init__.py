"""Sandboxes: where an agent's programs run, behind one protocol and several backends.

The protocol is here; `choice` opens the pool that a profile asks for.
"""

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
    "Limits",
    "Sandbox",
    "SandboxError",
    "SandboxLost",
    "SandboxQuota",
    "SandboxRefused",
    "SandboxTimeout",
    "SandboxUnavailable",
]

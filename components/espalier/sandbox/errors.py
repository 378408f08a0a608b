"""What can go wrong with a sandbox, by whose it is to mend.

SandboxError                  one clear message: which sandbox, what, what to do
+-- SandboxRefused            the caller asked for what cannot be: nothing ran; ask differently
+-- SandboxTimeout            starting, resetting or moving a file took too long: give it up
+-- SandboxLost               the sandbox is gone, its answer unknown: the episode has no result
+-- SandboxUnavailable        no sandbox can be had here, and trying again is no use
+-- SandboxQuota              no sandbox can be had now; later, perhaps

A program that fails, is killed by its limits, or takes too long is none of these: that is what an
`ExecResult` says, and what a policy gets to read.
"""

from __future__ import annotations

from espalier.records import EspalierError


class SandboxError(EspalierError):
    """Base of what can go wrong with a sandbox."""


class SandboxRefused(SandboxError):
    """The request cannot be served as it is; nothing ran.

    Attributes:
        status: of HTTP: 404 no such file, 409 something in the way or busy, 413 too large, 507 no
            room, 400 all else.
    """

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class SandboxTimeout(SandboxError):
    """The sandbox itself, not a program in it, did not answer in time."""


class SandboxLost(SandboxError):
    """The sandbox ended or cannot be reached; whether a command ran is unknown: never repeat it."""


class SandboxUnavailable(SandboxError):
    """This machine or cluster cannot give sandboxes."""


class SandboxQuota(SandboxError):
    """All sandboxes that may exist exist; creating is worth trying again later."""

"""How a step ends that fails: message, exit code, and the message where the cluster shows it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import TracebackType

from espalier.cluster.objects.pods import TRY_AGAIN_MARK
from espalier.records import EspalierError
from espalier.records.patience import AWAY

TRY_AGAIN = 75
"""EX_TEMPFAIL of sysexits.h: a server was away, and the same command may succeed later. A Job of
ours makes its pod again for it, unlike for 1 and 2. Kubeflow's launcher makes 1 of every code; the
mark before the message says the same there (k8s/kubeflow/controller)."""

TERMINATION_LOG = Path("/dev/termination-log")
"""Kubernetes shows its content as the reason why a container ended: `kubectl describe`, and the
message of the node in Kubeflow's UI. The kubelet makes it in every container."""
_MAX_BYTES = 4096
"""The kubelet cuts there."""
_CUT = "..."
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")
_SECRET_NAME = re.compile(r"SECRET|TOKEN|PASSWORD|PASSWD|API_KEY|ACCESS_KEY")
_MIN_SECRET = 6
"""Shorter values would blank ordinary words."""


class FailureMessage:
    """Within the block, an error ends the process, and its message goes to the termination log.

    What a user can mend is printed as one line, `error: STEP: ...`, and ends with 1, or with 75 if
    a server was away. Anything else keeps its traceback, and its last line is the message.
    """

    def __init__(self, step: str) -> None:
        self._step = step

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write the message of an error.

        Raises:
            SystemExit: instead of an EspalierError.
        """
        if isinstance(error, EspalierError):
            message = f"error: {self._step}: {error}"
            write_termination_message(message, asks_for_another_try=isinstance(error, AWAY))
            if isinstance(error, AWAY):
                sys.stderr.write(message + "\n")
                raise SystemExit(TRY_AGAIN) from error
            raise SystemExit(message) from error
        if isinstance(error, Exception):
            write_termination_message(f"error: {self._step}: {type(error).__name__}: {error}")


def write_termination_message(message: str, *, asks_for_another_try: bool = False) -> None:
    """Write `message` as one line, without credentials, where Kubernetes looks for it.

    Outside of a container, where the file does not exist, it does nothing.

    Args:
        message: for the user.
        asks_for_another_try: whether a server was away.
    """
    if not (TERMINATION_LOG.is_file() and os.access(TERMINATION_LOG, os.W_OK)):
        return
    mark = TRY_AGAIN_MARK if asks_for_another_try else ""
    line = _shortened(_without_secrets(_on_one_line(f"{mark}{message}")))
    # not replaced: the kubelet has mounted this very file
    TERMINATION_LOG.write_bytes(line)


def _on_one_line(message: str) -> str:
    lines = [" ".join(line.split()) for line in message.splitlines()]
    joined = ""
    for line in filter(None, lines):
        separator = " " if joined.endswith((":", ";", ".", ",")) else "; "
        joined = f"{joined}{separator}{line}" if joined else line
    return joined


def _without_secrets(text: str) -> str:
    for name, value in os.environ.items():
        if _SECRET_NAME.search(name.upper()) and len(value) >= _MIN_SECRET:
            text = text.replace(value, "***")
    return _CREDENTIALS.sub("", text)


def _shortened(text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) <= _MAX_BYTES:
        return encoded
    kept = encoded[: _MAX_BYTES - len(_CUT)].decode(errors="ignore")
    return (kept + _CUT).encode()

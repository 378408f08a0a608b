"""Message, exit code and termination message of a step that fails."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import TracebackType

from espalier.cluster.objects.pods import TRY_AGAIN_MARK
from espalier.records import EspalierError, HungError, LostWorkerError, ServerAwayError
from espalier.records.patience import AWAY

TRY_AGAIN = os.EX_TEMPFAIL
"""Exit code of a command that may succeed later: a server was unreachable, a node lost, or a wait
too long.
espalier's Jobs retry after it, but not after 1 and 2. Kubeflow's launcher turns every code into 1,
so there the mark before the message means the same (k8s/kubeflow/controller)."""

_MAY_SUCCEED_LATER = (*AWAY, HungError, LostWorkerError, ServerAwayError)

TERMINATION_LOG = Path("/dev/termination-log")
"""File, which the kubelet creates in every container, whose content Kubernetes shows as the reason
of the container's end: in `kubectl describe`, and as the node's message in Kubeflow's UI."""
_MAX_BYTES = 4096
"""Length at which the kubelet cuts the message."""
_CUT = "..."
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")
_SECRET_NAME = re.compile(r"SECRET|TOKEN|PASSWORD|PASSWD|API_KEY|ACCESS_KEY")
_MIN_SECRET = 6
"""Least length of a value that is treated as a secret: shorter ones could be ordinary words."""


class FailureMessage:
    """Context manager that ends the process at an error and writes the termination log.

    An error that a user can correct (EspalierError) is printed as one line, `error: STEP: ...`, and
    exits with 1, or with 75 if the command may succeed later. Other errors keep their traceback;
    their last line is the message. A process that is killed in the block, or ends itself because
    something hangs, has left the message of `__enter__`.
    """

    def __init__(self, step: str) -> None:
        self._step = step

    def __enter__(self) -> None:
        """Write what holds if nothing more is written."""
        write_termination_message(
            f"error: {self._step}: ended without a message: killed, as where memory ran out, or "
            "something hung; the last lines of its log say more",
            asks_for_another_try=True,
        )

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
            may_succeed_later = isinstance(error, _MAY_SUCCEED_LATER)
            write_termination_message(message, asks_for_another_try=may_succeed_later)
            if may_succeed_later:
                sys.stderr.write(message + "\n")
                raise SystemExit(TRY_AGAIN) from error
            raise SystemExit(message) from error
        if isinstance(error, Exception):
            write_termination_message(f"error: {self._step}: {type(error).__name__}: {error}")
        else:
            write_termination_message("")


def write_termination_message(message: str, *, asks_for_another_try: bool = False) -> None:
    """Write `message` as one line, without credentials, to the termination log.

    Do nothing outside of a container, where that file does not exist.

    Args:
        message: message for the user.
        asks_for_another_try: whether a retry may succeed.
    """
    if not (TERMINATION_LOG.is_file() and os.access(TERMINATION_LOG, os.W_OK)):
        return
    mark = TRY_AGAIN_MARK if asks_for_another_try else ""
    line = _shortened(_without_secrets(_on_one_line(f"{mark}{message}")))
    # overwritten, not replaced, because the kubelet has mounted this file
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

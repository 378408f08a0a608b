"""Compares answers in processes of their own, each answer within a limit of processor time.

A policy writes what is compared, and some of it takes hours or all memory: an integral, a patch of
20,000 equal characters. A process is ended at its limit by the kernel, and the answer is then as
wrong as any other; the answers of other episodes wait for one of the other processes, or for their
turn, and lose nothing. On a busy machine a comparison takes longer, with the same result.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from cachetools import LRUCache

from espalier.records import EspalierError
from espalier.rewards import comparing_worker
from espalier.rewards.comparing_worker import ComparedKind

_REPLY_WITHIN_S = 300.0
_START_WITHIN_S = 300.0
"""Importing sympy takes about a second on an idle machine, over a minute on a busy one."""
_MOST_PROCESSES = 4
_MOST_REMEMBERED = 4096
_STARTS = 3
_FROM_OUTSIDE = frozenset({-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP})
"""Ends of a process that no answer can cause: the kernel's limits have other signals."""


class ComparerError(EspalierError):
    """The comparing process cannot be used at all, so no answer can be scored."""


class Comparer:
    """A comparing process, for one answer at a time; started at the first, and after each kill.

    Args:
        kind: what it compares.
        within_s: limit of a comparison's processor time, seconds; the kernel may allow up to one
            second more.
        reply_within_s: longest wait for its reply, seconds.
    """

    def __init__(
        self, kind: ComparedKind, *, within_s: int, reply_within_s: float = _REPLY_WITHIN_S
    ) -> None:
        self._kind: ComparedKind = kind
        self._within_s = within_s
        self._reply_within_s = reply_within_s
        self._process: subprocess.Popen[bytes] | None = None

    def compare(self, *sides: object) -> Any:  # noqa: ANN401 (what the comparison returns)
        """Return the result of the comparison; None if it is not decided within its limits.

        Raises:
            ComparerError: the process does not start, is ended from outside again and again, or is
                not given its processor time.
        """
        request = json.dumps(sides).encode() + b"\n"
        for _ in range(_STARTS):
            process = self._process or self._started()
            try:
                verdict = _exchange(process, request, self._reply_within_s)
            except TimeoutError as late:
                self.close()
                raise ComparerError(
                    f"two answers were not compared within {self._reply_within_s:g} s, of which "
                    f"{self._within_s} s of processor time are enough: give the machine less to do"
                ) from late
            if verdict is not None:
                return json.loads(verdict)
            self.close()
            if process.returncode not in _FROM_OUTSIDE:
                return None
        raise ComparerError(
            f"the process that compares answers ({self._kind}) was ended {_STARTS} times from "
            "outside of espalier: give the machine more memory, or less to do"
        )

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        with tempfile.TemporaryFile() as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-I", comparing_worker.__file__, self._kind, str(self._within_s)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                env={},
            )
            try:
                ready = _exchange(self._process, b"", _START_WITHIN_S) == b"ready"
            except TimeoutError:
                ready = False
            if not ready:
                self.close()
                errors.seek(0)
                said = errors.read().decode(errors="replace").strip()[-400:]
                raise ComparerError(
                    f"answers cannot be compared ({self._kind}): their process does not start "
                    f"({said}). Install espalier again"
                )
        return self._process


class Comparers:
    """The comparing processes of one kind, and the results so far.

    Args:
        kind: what they compare.
        within_s: limit of each comparison's processor time, seconds.
    """

    def __init__(self, kind: ComparedKind, *, within_s: int) -> None:
        # the last one that was used is taken first: others are started when it is not free
        self._free: queue.LifoQueue[Comparer] = queue.LifoQueue()
        for _ in range(max(1, min(_MOST_PROCESSES, os.cpu_count() or 1))):
            self._free.put(Comparer(kind, within_s=within_s))
        self._known: LRUCache[bytes, Any] = LRUCache(_MOST_REMEMBERED)
        self._lock = threading.Lock()
        atexit.register(self.close)

    def compare(self, *sides: object) -> Any:  # noqa: ANN401 (what the comparison returns)
        """Compare as `Comparer.compare` does, in the next free process; any thread may call it.

        Results are kept, because the trajectories of a group repeat answers.
        """
        key = hashlib.sha256(json.dumps(sides).encode()).digest()
        with self._lock:
            if key in self._known:
                return self._known[key]
        comparer = self._free.get()
        try:
            found = comparer.compare(*sides)
        finally:
            self._free.put(comparer)
        with self._lock:
            self._known[key] = found
        return found

    def close(self) -> None:
        """End the processes that are not in use."""
        while not self._free.empty():
            self._free.get().close()


def _exchange(process: subprocess.Popen[bytes], request: bytes, within_s: float) -> bytes | None:
    """Send a request and return the reply line; None if the process has ended.

    Raises:
        TimeoutError: the process is alive and has not replied.
    """
    assert process.stdin is not None, "the process is started with pipes"
    assert process.stdout is not None, "the process is started with pipes"
    deadline, received = time.monotonic() + within_s, b""
    try:
        while request:
            request = request[process.stdin.write(request) or 0 :]
    except BrokenPipeError:
        return None
    while not received.endswith(b"\n"):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([process.stdout], [], [], left_s)[0]:
            raise TimeoutError
        data = os.read(process.stdout.fileno(), 4096)
        if not data:
            return None
        received += data
    return received.strip()

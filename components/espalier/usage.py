"""Wall seconds and peak memory of one piece of work in this process."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc_pid_clear_refs(5): "reset the peak resident set size"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a piece of work cost."""

    seconds: float
    peak_rss_mb: float
    """Resident memory in MiB at its highest, what the process held before included."""


class UsageMeter:
    """Measures from its construction on.

    Where the kernel cannot reset the peak (outside Linux), the peak is that of the whole process
    so far.
    """

    def __init__(self) -> None:
        self._started = time.perf_counter()
        if _CLEAR_REFS.exists():
            _CLEAR_REFS.write_text(_RESET_PEAK)

    def read(self) -> Usage:
        """What was used until now."""
        return Usage(time.perf_counter() - self._started, _peak_rss_mb())


def used_since(started: float) -> dict[str, float]:
    """What a stage's run.json says of its cost, under the names of `Usage`.

    Args:
        started: `time.perf_counter()` at its start. The peak is that of the whole process so far.
    """
    return {
        "seconds": round(time.perf_counter() - started, 3),
        "peak_rss_mb": round(_highest_rss_mb(), 1),
    }


def _peak_rss_mb() -> float:
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return _highest_rss_mb()


def _highest_rss_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)

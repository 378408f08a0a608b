"""Wall time and peak memory of a piece of work in this process."""

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
    """Wall time and peak memory of a piece of work."""

    seconds: float
    peak_rss_mb: float
    """Peak resident memory of the process in MiB, including memory that it had before."""


class UsageMeter:
    """Meter that starts at its construction.

    Outside of Linux, where the kernel cannot reset the peak, the peak is that of the whole process
    so far.
    """

    def __init__(self) -> None:
        self._started = time.perf_counter()
        if _CLEAR_REFS.exists():
            _CLEAR_REFS.write_text(_RESET_PEAK)

    def read(self) -> Usage:
        """Usage from the start until now."""
        return Usage(time.perf_counter() - self._started, _peak_rss_mb())


def used_since(started: float) -> dict[str, float]:
    """Usage of a stage for its run.json, by the field names of `Usage`.

    Args:
        started: `time.perf_counter()` at the stage's start. The peak is that of the whole process.
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

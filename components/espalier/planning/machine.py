"""Cores, memory, disk and GPU of this machine, and amounts such as 16GiB."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from espalier.records import ProfileError
from espalier.steps.given_model import machine_memory

_MIB = 1 << 20
_DRIVER = Path("/proc/driver/nvidia/gpus")


class Machine(NamedTuple):
    """Cores of a machine, and its memory and disk in MiB."""

    cores: int
    memory_mib: float | None
    """Total memory, or the container's limit; None if it cannot be read (outside Linux)."""
    disk_mib: float
    """Free space in the folder of runs."""
    accelerator_mib: float | None
    """Memory of one NVIDIA GPU; None without one."""


def this_machine(runs_dir: Path) -> Machine:
    """Measure this machine."""
    folder = runs_dir.resolve()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    memory = machine_memory()
    return Machine(
        cores=len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
        memory_mib=None if memory is None else memory.total / _MIB,
        disk_mib=shutil.disk_usage(existing).free / _MIB,
        accelerator_mib=_accelerator_mib(),
    )


def _accelerator_mib() -> float | None:
    # torch takes seconds to import, so it is used only if there is an NVIDIA driver
    if not _DRIVER.is_dir():
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_properties(0).total_memory / _MIB


_UNITS_MIB = {"MiB": 1.0, "GiB": 1024.0, "TiB": 1024.0**2, "MB": 1e6 / _MIB, "GB": 1e9 / _MIB}
_AMOUNT = re.compile(rf"(\d+(?:\.\d+)?) ?({'|'.join(_UNITS_MIB)})")


def mebibytes(text: str) -> float:
    """Parse an amount such as `16GiB`; in MiB.

    Raises:
        ProfileError: the text is not an amount, or 0.
    """
    found = _AMOUNT.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise ProfileError(
            f"{text!r} is not an amount of memory or disk; write it as 16GiB, "
            f"with {', '.join(_UNITS_MIB)}"
        )
    return float(found[1]) * _UNITS_MIB[found[2]]

"""What this machine has, and the amounts that limits are written in."""

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
    """Memory and disk in MiB."""

    cores: int
    memory_mib: float | None
    """All of it, or of the container; None where that cannot be read (outside Linux)."""
    disk_mib: float
    """Free, where runs are written."""
    accelerator_mib: float | None
    """Memory of one NVIDIA GPU; None without one."""


def this_machine(runs_dir: Path) -> Machine:
    """Look at this machine; nothing is changed."""
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
    # torch takes seconds to import: it is asked only where it can find one
    if not _DRIVER.is_dir():
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_properties(0).total_memory / _MIB


_UNITS_MIB = {"MiB": 1.0, "GiB": 1024.0, "TiB": 1024.0**2, "MB": 1e6 / _MIB, "GB": 1e9 / _MIB}
_AMOUNT = re.compile(rf"(\d+(?:\.\d+)?) ?({'|'.join(_UNITS_MIB)})")


def mebibytes(text: str) -> float:
    """An amount such as `16GiB`, in MiB.

    Raises:
        ProfileError: it is not written like that.
    """
    found = _AMOUNT.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise ProfileError(
            f"{text!r} is no amount of memory or disk; write it as 16GiB, "
            f"with {', '.join(_UNITS_MIB)}"
        )
    return float(found[1]) * _UNITS_MIB[found[2]]

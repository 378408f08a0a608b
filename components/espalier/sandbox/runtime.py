"""What of this machine's Python goes into a local sandbox: the interpreter and named packages.

The sandbox sees them as a virtual environment of its own, /opt/sandbox, which is where images have
theirs. Nothing else of the environment that espalier runs in is visible there.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import sandboxd

ENVIRONMENT = PurePosixPath("/opt/sandbox")
_SERVER_NEEDS = ("starlette", "uvicorn")
_ALREADY_THERE = Path("/usr")
_REQUIREMENT_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of this machine, read-only at its place in the sandbox."""

    source: Path
    target: PurePosixPath


def interpreter() -> Path:
    """The Python that virtual environments of this one are made of."""
    return Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")


def environment_settings() -> str:
    """The pyvenv.cfg that makes /opt/sandbox a virtual environment."""
    return f"home = {interpreter().parent}\ninclude-system-site-packages = false\n"


def python_mounts(packages: Iterable[str]) -> list[Mount]:
    """The interpreter, sandboxd and what it needs, and packages with theirs; absent ones not."""
    prefix = Path(sys.base_prefix).resolve()
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = ENVIRONMENT / "lib" / version / "site-packages"
    found = {path.name: path for path in _top_level([*_SERVER_NEEDS, *packages])}
    found["sandboxd"] = Path(sandboxd.__file__).parent
    mounts = [Mount(path, site / name) for name, path in sorted(found.items())]
    if not prefix.is_relative_to(_ALREADY_THERE):
        mounts.append(Mount(prefix, PurePosixPath(prefix)))
    return mounts


def _top_level(packages: Iterable[str]) -> Iterator[Path]:
    """Files and folders that importing the packages, and what they require, reads."""
    waiting, seen = list(packages), set[str]()
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        required = [line for line in distribution.requires or () if "extra ==" not in line]
        waiting += [match[0] for line in required if (match := _REQUIREMENT_NAME.match(line))]
        tops = {file.parts[0] for file in distribution.files or ()}
        for top in tops - {"..", "__pycache__"}:
            if not top.endswith(".dist-info"):
                yield Path(str(distribution.locate_file(top)))

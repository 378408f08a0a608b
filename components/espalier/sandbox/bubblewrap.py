"""The command line of a local sandbox and the Python mounted into it; starts nothing itself.

A sandbox sees this machine's interpreter and the named packages as a virtual environment in
/opt/sandbox, the path that images use too. Nothing else of espalier's environment is visible.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import sandboxd
from espalier.sandbox.protocol import Limits

ENVIRONMENT = PurePosixPath("/opt/sandbox")
_SERVER_NEEDS = ("starlette", "uvicorn")
_ALREADY_THERE = Path("/usr")
_REQUIREMENT_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Mount:
    """A read-only bind mount of a file or folder of this machine."""

    source: Path
    target: PurePosixPath


def interpreter() -> Path:
    """Return the base interpreter of this virtual environment."""
    return Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")


def environment_settings() -> str:
    """Return the content of the pyvenv.cfg in /opt/sandbox."""
    return f"home = {interpreter().parent}\ninclude-system-site-packages = false\n"


def python_mounts(packages: Iterable[str]) -> list[Mount]:
    """Return mounts of the interpreter, of sandboxd and of packages with their dependencies."""
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
    """Yield the top-level files and folders of the packages and of their requirements."""
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


USER_ID = 1000
"""User id of all processes in the sandbox."""
WORKSPACE = "/workspace"
MASKED_FILES = tuple(
    f"/proc/{name}"
    for name in (
        "buddyinfo", "config.gz", "consoles", "crypto", "devices", "diskstats", "dma",
        "execdomains", "fb", "interrupts", "iomem", "ioports", "kallsyms", "kcore", "key-users",
        "keys", "kmsg", "latency_stats", "mdstat", "misc", "modules", "mtrr", "pagetypeinfo",
        "partitions", "sched_debug", "schedstat", "slabinfo", "softirqs", "swaps", "timer_list",
        "timer_stats", "version_signature", "vmallocinfo", "zoneinfo",
    )
)  # fmt: skip
"""Files that identify a machine by its disks, devices or kernel. No program needs them to measure
itself; cpuinfo, meminfo and stat, which programs read to adapt to a machine, stay readable."""
MASKED_FOLDERS = tuple(
    f"/proc/{name}"
    for name in (
        "acpi", "asound", "bus", "driver", "dynamic_debug", "fs", "irq", "pressure", "scsi",
        "sys/dev", "sys/fs/binfmt_misc", "tty",
    )
)  # fmt: skip
_SHARED_MEMORY_BYTES = 16 * 2**20
_MERGED_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC_PATHS = ("/etc/alternatives", "/etc/ld.so.cache")
_SETPRIV_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
_BECOME_USER = (
    *("/usr/bin/setpriv", "--reuid", str(USER_ID), "--regid", str(USER_ID), "--clear-groups"),
    *("--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"),
    *("--pdeathsig", "KILL", "--"),
)
"""Changing the user clears --die-with-parent in the kernel, so setpriv sets it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedDescriptors:
    """File descriptors passed to bubblewrap.

    Attributes:
        listener: the socket that sandboxd accepts on; it has no path inside the sandbox.
        information: bubblewrap writes the pid of the sandbox's first process to it.
        user_map: bubblewrap reads it to wait for the user map; None maps only the caller.
    """

    listener: int
    information: int
    user_map: int | None


def command(
    limits: Limits,
    mounts: Iterable[Mount],
    settings: Mapping[str, str],
    descriptors: PassedDescriptors,
    links: Sequence[str] = (),
) -> list[str]:
    """Return the bubblewrap command.

    /usr, the interpreter and a few files of /etc are readable; the workspace, /tmp and /dev/shm are
    writable, each a tmpfs of limited size. `links` names folders of the workspace that get a link
    in the root folder.
    """
    python = ["--perms", "0755", "--dir", str(ENVIRONMENT / "bin")]
    for name in ("python", "python3"):
        python += ["--symlink", str(interpreter()), str(ENVIRONMENT / "bin" / name)]
    return [
        "bwrap",
        *_namespaces(descriptors),
        *("--ro-bind", "/usr", "/usr"),
        *_merged_folders(),
        *("--perms", "0755", "--dir", "/etc"),
        *(word for path in _ETC_PATHS for word in ("--ro-bind-try", path, path)),
        *("--proc", "/proc", "--dev", "/dev"),
        *_read_only(mounts),
        *python,
        *(word for name in links for word in ("--symlink", f"{WORKSPACE}/{name}", f"/{name}")),
        *_writable(WORKSPACE, limits.disk_bytes),
        *_writable("/tmp", limits.disk_bytes),
        *_writable("/dev/shm", _SHARED_MEMORY_BYTES),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORKSPACE, "--clearenv"),
        *(word for name, value in settings.items() for word in ("--setenv", name, value)),
        "--",
        *(_BECOME_USER if descriptors.user_map is not None else ()),
        *(f"{ENVIRONMENT}/bin/python", "-I", "-m", "sandboxd"),
    ]


def _namespaces(descriptors: PassedDescriptors) -> list[str]:
    if descriptors.user_map is None:
        users = ["--uid", str(USER_ID), "--gid", str(USER_ID)]
    else:
        capabilities = [w for name in _SETPRIV_CAPABILITIES for w in ("--cap-add", name)]
        users = ["--userns-block-fd", str(descriptors.user_map), "--cap-drop", "ALL", *capabilities]
    return [
        *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
        *("--unshare-cgroup-try", "--hostname", "sandbox"),
        *("--as-pid-1", "--die-with-parent", "--new-session"),
        *("--info-fd", str(descriptors.information)),
        *users,
    ]


def _merged_folders() -> list[str]:
    """Return arguments that recreate /bin, /lib and so on as on this machine: links or mounts."""
    words: list[str] = []
    for name in _MERGED_FOLDERS:
        path = Path("/", name)
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    return words


def _read_only(mounts: Iterable[Mount]) -> list[str]:
    """Return bind mounts, after parent folders with mode 0755, so that every user can enter."""
    words: list[str] = []
    made: set[PurePosixPath] = set()
    for mount in mounts:
        for folder in reversed(mount.target.parents[:-1]):
            if folder not in made:
                made.add(folder)
                words += ["--perms", "0755", "--dir", str(folder)]
        words += ["--ro-bind", str(mount.source), str(mount.target)]
    return words


def _writable(path: str, size_bytes: int) -> tuple[str, ...]:
    return ("--perms", "1777", "--size", str(size_bytes), "--tmpfs", path)

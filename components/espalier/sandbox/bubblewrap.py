"""The command line of a local sandbox: what bubblewrap is told to build; nothing is run here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from espalier.sandbox.protocol import Limits
from espalier.sandbox.runtime import ENVIRONMENT, Mount, interpreter

USER_ID = 1000
"""Of all processes in the sandbox."""
WORKSPACE = "/workspace"
_SHARED_MEMORY_BYTES = 16 * 2**20
_MERGED_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_OF_ETC = ("/etc/alternatives", "/etc/ld.so.cache")
_TO_BECOME_USER = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
_BECOME_USER = (
    *("/usr/bin/setpriv", "--reuid", str(USER_ID), "--regid", str(USER_ID), "--clear-groups"),
    *("--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"),
    *("--pdeathsig", "KILL", "--"),
)
"""Becoming another user makes the kernel forget --die-with-parent, so it is said again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """Descriptors that bubblewrap gets.

    Attributes:
        listener: the socket that sandboxd accepts on; no path of the sandbox leads to it.
        information: where bubblewrap writes the number of the sandbox's first process.
        user_map: what it waits for while its user map is written; None maps the caller alone.
    """

    listener: int
    information: int
    user_map: int | None


def command(
    limits: Limits, mounts: Iterable[Mount], settings: Mapping[str, str], handed: Handed
) -> list[str]:
    """The whole command.

    Only /usr, the interpreter, and what programs look up in /etc can be read; only the workspace,
    /tmp and /dev/shm can be written, each a tmpfs of limited size.
    """
    return [
        "bwrap",
        *_namespaces(handed),
        *("--ro-bind", "/usr", "/usr"),
        *_merged_folders(),
        *("--perms", "0755", "--dir", "/etc"),
        *(word for path in _OF_ETC for word in ("--ro-bind-try", path, path)),
        *("--proc", "/proc", "--dev", "/dev"),
        *_read_only(mounts),
        *_python_links(),
        *_writable(WORKSPACE, limits.disk_bytes),
        *_writable("/tmp", limits.disk_bytes),
        *_writable("/dev/shm", _SHARED_MEMORY_BYTES),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORKSPACE, "--clearenv"),
        *(word for name, value in settings.items() for word in ("--setenv", name, value)),
        "--",
        *(_BECOME_USER if handed.user_map is not None else ()),
        *(f"{ENVIRONMENT}/bin/python", "-I", "-m", "sandboxd"),
    ]


def _namespaces(handed: Handed) -> list[str]:
    return [
        *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
        *("--unshare-cgroup-try", "--hostname", "sandbox"),
        *("--as-pid-1", "--die-with-parent", "--new-session"),
        *("--info-fd", str(handed.information)),
        *_users(handed.user_map),
    ]


def _users(user_map: int | None) -> tuple[str, ...]:
    if user_map is None:
        return ("--uid", str(USER_ID), "--gid", str(USER_ID))
    kept = [w for name in _TO_BECOME_USER for w in ("--cap-add", name)]
    return ("--userns-block-fd", str(user_map), "--cap-drop", "ALL", *kept)


def _merged_folders() -> list[str]:
    """/bin and the like as this machine has them: links into /usr, or folders of their own."""
    words: list[str] = []
    for name in _MERGED_FOLDERS:
        path = Path("/", name)
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    return words


def _read_only(mounts: Iterable[Mount]) -> list[str]:
    """Bind mounts; folders on the way are made first, else only their owner could pass them."""
    words: list[str] = []
    made: set[PurePosixPath] = set()
    for mount in mounts:
        for folder in reversed(mount.target.parents[:-1]):
            if folder not in made:
                made.add(folder)
                words += ["--perms", "0755", "--dir", str(folder)]
        words += ["--ro-bind", str(mount.source), str(mount.target)]
    return words


def _python_links() -> list[str]:
    links = [str(ENVIRONMENT / "bin" / name) for name in ("python", "python3")]
    folder = ["--perms", "0755", "--dir", str(ENVIRONMENT / "bin")]
    return folder + [w for link in links for w in ("--symlink", str(interpreter()), link)]


def _writable(path: str, size_bytes: int) -> tuple[str, ...]:
    return ("--perms", "1777", "--size", str(size_bytes), "--tmpfs", path)

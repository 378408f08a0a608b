"""What an episode can write: snapshots of it, and getting it back to one."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import stat
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from sandboxd import kernel
from sandboxd.wire import RequestError

MAX_SNAPSHOT_BYTES = 128 * 2**20
_MOST_SNAPSHOTS = 8


class Workspace:
    """The workspace, and the other folders that a reset empties.

    Snapshots are files in sandboxd's memory without a name, so that no job can change them. Going
    back to one forgets those taken after it.
    """

    def __init__(self, root: Path, others: Sequence[Path]) -> None:
        self.root = root
        self._folders = (root, *others)
        self._snapshots: dict[str, int] = {}

    def snapshot(self) -> str:
        """Keep the workspace as it is now; what it is kept under.

        Raises:
            RequestError: it is too large, or there are too many.
        """
        if len(self._snapshots) >= _MOST_SNAPSHOTS:
            raise RequestError(f"there are {_MOST_SNAPSHOTS} snapshots already", status=409)
        packed = io.BytesIO()
        left = MAX_SNAPSHOT_BYTES
        try:
            with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for path in _below(self.root):
                    left -= path.lstat().st_size
                    if left < 0:
                        most = MAX_SNAPSHOT_BYTES
                        raise RequestError(f"a snapshot has at most {most} bytes", status=413)
                    archive.add(path, path.relative_to(self.root).as_posix(), recursive=False)
        except OSError as error:
            raise RequestError(f"the workspace cannot be read: {error}", status=409) from error
        name = secrets.token_hex(8)
        self._snapshots[name] = kernel.sealed_file("snapshot", packed.getvalue())
        return name

    def reset(self, to: str | None) -> None:
        """Empty every folder, then put back a snapshot, or nothing.

        Raises:
            RequestError: there is no such snapshot.
        """
        if to is not None and to not in self._snapshots:
            raise RequestError(f"there is no snapshot {to!r}", status=404)
        for folder in self._folders:
            _empty(folder)
        names = list(self._snapshots)
        for name in names[names.index(to) + 1 if to else 0 :]:
            os.close(self._snapshots.pop(name))
        if to is not None:
            self._restore(self._snapshots[to])

    def _restore(self, packed: int) -> None:
        os.lseek(packed, 0, os.SEEK_SET)
        with (
            os.fdopen(os.dup(packed), "rb") as file,
            tarfile.open(fileobj=file, mode="r:") as archive,
        ):
            archive.extraction_filter = lambda member, _: member  # packed here, with its links
            archive.extractall(self.root)


def _below(root: Path) -> Iterator[Path]:
    """Folders, files and links, parents first; without recursion, however deep."""
    waiting = [root]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    waiting.append(Path(entry.path))
                if stat.S_ISDIR(mode) or stat.S_ISREG(mode) or stat.S_ISLNK(mode):
                    yield Path(entry.path)


def _empty(folder: Path) -> None:
    """Remove all that is in a folder, and what was changed of the folder itself.

    Folders are first moved to the top one by one: a job can nest them deeper than a path is long.
    """
    with contextlib.suppress(PermissionError):  # /tmp may be another user's
        folder.chmod(stat.S_IMODE(folder.stat().st_mode) | stat.S_IRWXU)
    for attribute in os.listxattr(folder):
        if attribute.startswith("user."):
            os.removexattr(folder, attribute)
    waiting = _clear(folder, folder)
    while waiting:
        below = waiting.pop()
        below.chmod(stat.S_IRWXU)
        waiting += _clear(below, folder)
        below.rmdir()


def _clear(folder: Path, top: Path) -> list[Path]:
    """Remove files of a folder; its folders, moved to the top under new names."""
    moved = []
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                moved.append(top / f".reset-{secrets.token_hex(8)}")
                os.chmod(entry.path, stat.S_IRWXU)
                os.rename(entry.path, moved[-1])
            else:
                os.unlink(entry.path)
    return moved

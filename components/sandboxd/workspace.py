"""The writable folders of a sandbox: files for the client, snapshots, reset.

A job may replace a folder by a link at any moment, so paths are opened name by name, such that no
link leads outside. Each step opens the next name relative to the last folder, with O_NOFOLLOW, and
continues only if it is a folder; a whole path is never resolved. O_DIRECTORY is not used, because
gVisor then follows links despite O_NOFOLLOW.

Files are read and written in threads, so that the server answers also with a slow disk or 80,000
folders.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import os
import secrets
import stat
import tarfile
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from sandboxd import kernel
from sandboxd.wire import MAX_FILE_BYTES, RequestError

MAX_SNAPSHOT_BYTES = 128 * 2**20
_MOST_SNAPSHOTS = 8


class Workspace:
    """The workspace, and the other folders that a reset empties.

    Snapshots are sealed memfds of sandboxd, so that no job can change them. Restoring one deletes
    the later ones. A put during a reset is refused, so that its file cannot reach the next user;
    incomplete files have names that snapshots leave out.
    """

    def __init__(self, root: Path, others: Sequence[Path]) -> None:
        self.root = root
        self._folders = (root, *others)
        self._snapshots: dict[str, int] = {}
        self._resets = 0
        self._is_resetting = False
        self._partial = f".put-{secrets.token_hex(8)}-"
        """Prefix of the names of incomplete files."""

    async def put(self, path: str, content: AsyncIterable[bytes]) -> int:
        """Write a file atomically, create its parent folders, and return its size in bytes.

        Raises:
            RequestError: the path leaves the workspace or is blocked, no space is left, or the
                workspace is being reset.
        """
        *folders, name = names_of(path)
        partial = self._partial + secrets.token_hex(8)
        resets, written = self._resets, 0
        self._check_no_reset(path, resets)
        with _refusing(path), _folder(self.root, folders, make=True) as folder:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(partial, flags, 0o644, dir_fd=folder)
            try:
                async for data in content:
                    written += len(data)
                    if written > MAX_FILE_BYTES:
                        raise RequestError(f"a file has at most {MAX_FILE_BYTES} bytes", status=413)
                    self._check_no_reset(path, resets)
                    await asyncio.to_thread(_write_all, file, data)
                self._check_no_reset(path, resets)  # no await between this check and the rename
                os.rename(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(partial, dir_fd=folder)
                raise
            finally:
                os.close(file)
        return written

    def _check_no_reset(self, path: str, resets: int) -> None:
        if self._is_resetting or self._resets != resets:
            raise RequestError(f"{path!r}: the workspace is being reset", status=409)

    def snapshot(self) -> str:
        """Save the workspace and return the snapshot's name.

        Raises:
            RequestError: the workspace is too large, or there are too many snapshots.
        """
        if len(self._snapshots) >= _MOST_SNAPSHOTS:
            raise RequestError(f"there are {_MOST_SNAPSHOTS} snapshots already", status=409)
        packed = io.BytesIO()
        left = MAX_SNAPSHOT_BYTES
        try:
            with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for path in _below(self.root, without=self._partial):
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

    async def reset(self, to: str | None) -> None:
        """Empty every folder, then restore a snapshot if `to` names one; one reset at a time.

        Raises:
            RequestError: there is no such snapshot.
        """
        if to is not None and to not in self._snapshots:
            raise RequestError(f"there is no snapshot {to!r}", status=404)
        self._resets += 1
        self._is_resetting = True
        try:
            await asyncio.to_thread(self._reset, to)
        finally:
            self._is_resetting = False

    def _reset(self, to: str | None) -> None:
        for folder in self._folders:
            _empty(folder)
        names = list(self._snapshots)
        for name in names[names.index(to) + 1 if to else 0 :]:
            os.close(self._snapshots.pop(name))
        if to is not None:
            self._restore(self._snapshots[to])
        for folder in self._folders:
            _forget_times(folder)

    def _restore(self, packed: int) -> None:
        os.lseek(packed, 0, os.SEEK_SET)
        with (
            os.fdopen(os.dup(packed), "rb") as file,
            tarfile.open(fileobj=file, mode="r:") as archive,
        ):
            archive.extraction_filter = lambda member, _: member  # our own archive, links included
            archive.extractall(self.root)


def _below(root: Path, *, without: str) -> Iterator[Path]:
    """Yield folders, files and links, parents first, without names that begin with `without`.

    It is iterative, because folders may be nested deeply.
    """
    waiting = [root]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name.startswith(without):
                    continue
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    waiting.append(Path(entry.path))
                if stat.S_ISDIR(mode) or stat.S_ISREG(mode) or stat.S_ISLNK(mode):
                    yield Path(entry.path)


def _empty(folder: Path) -> None:
    """Empty a folder, and undo changes of its mode and attributes.

    Subfolders are first moved to the top, because a job can nest them deeper than PATH_MAX.
    """
    with contextlib.suppress(PermissionError):  # /tmp may belong to another user
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


def _forget_times(folder: Path) -> None:
    """Set a folder's times, which could contain a message to the next user, to the present."""
    passing = folder / f".reset-{secrets.token_hex(8)}"
    passing.mkdir()
    passing.rmdir()
    with contextlib.suppress(PermissionError):  # another user's folder; jobs cannot set it either
        os.utime(folder)


def _clear(folder: Path, top: Path) -> list[Path]:
    """Remove a folder's files, move its subfolders to `top`, and return their new paths."""
    moved = []
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                moved.append(top / f".reset-{secrets.token_hex(8)}")
                os.chmod(entry.path, stat.S_IRWXU)
                os.rename(entry.path, moved[-1])
            else:
                with contextlib.suppress(FileNotFoundError):  # a refused put has just removed it
                    os.unlink(entry.path)
    return moved


_CHUNK_BYTES = 256 * 1024
_HELD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags that open the name itself: a link instead of its target, a pipe without blocking."""
_STATUS = {
    errno.ENOENT: 404,
    errno.EEXIST: 409,
    errno.EISDIR: 409,
    errno.ENOTDIR: 409,
    errno.ENOTEMPTY: 409,
    errno.ENOSPC: 507,
    errno.EDQUOT: 507,
}


def names_of(path: str) -> list[str]:
    """Split a path relative to the workspace into names.

    Raises:
        RequestError: the path is empty, absolute, or has ".." or NUL.
    """
    if "\0" in path or path.startswith("/"):
        raise RequestError(f"a path is relative to the workspace and without NUL, not {path!r}")
    names = [name for name in path.split("/") if name not in {"", "."}]
    if not names or ".." in names:
        raise RequestError(f"a path names a file inside the workspace, without '..', not {path!r}")
    return names


def open_file(workspace: Path, path: str) -> BinaryIO:
    """Open a regular file of the workspace for reading.

    Raises:
        RequestError: the path leaves the workspace, or the file is missing, not regular or too
            large.
    """
    *folders, name = names_of(path)
    with _refusing(path), _folder(workspace, folders, make=False) as folder:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=folder)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise RequestError(f"{path!r} is not a regular file", status=409)
    if status.st_size > MAX_FILE_BYTES:
        os.close(descriptor)
        raise RequestError(f"{path!r} has more than {MAX_FILE_BYTES} bytes", status=413)
    return os.fdopen(descriptor, "rb", buffering=0)


async def file_chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    """Yield a file's content, at most MAX_FILE_BYTES even if it grows, and close it."""
    left = MAX_FILE_BYTES
    with file:
        while left and (data := await asyncio.to_thread(file.read, min(_CHUNK_BYTES, left))):
            left -= len(data)
            yield data


@contextlib.contextmanager
def _folder(workspace: Path, names: list[str], *, make: bool) -> Iterator[int]:
    held = os.open(workspace, _HELD)
    try:
        for name in names:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=held)
            below = os.open(name, _HELD, dir_fd=held)
            os.close(held)
            held = below
            _check_folder(held)
        yield held
    finally:
        os.close(held)


def _check_folder(held: int) -> None:
    mode = os.fstat(held).st_mode
    if not stat.S_ISDIR(mode):
        number = errno.ELOOP if stat.S_ISLNK(mode) else errno.ENOTDIR
        raise OSError(number, os.strerror(number))


@contextlib.contextmanager
def _refusing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise RequestError(f"{path!r} follows a symbolic link", status=409) from error
        status = _STATUS.get(error.errno or 0, 400)
        raise RequestError(f"{path!r}: {error.strerror}", status=status) from error


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]

"""Files of the workspace for the client: walked name by name, so that no link leads elsewhere.

A job may swap a folder for a link at any moment. Every step therefore holds the next name below
the folder held before, whatever it is, and goes on only if that is a folder; the path is never
looked up as a whole. O_DIRECTORY would not do: with it gVisor follows links despite O_NOFOLLOW.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from pathlib import Path
from typing import BinaryIO

from sandboxd.wire import MAX_FILE_BYTES, RequestError

_CHUNK_BYTES = 256 * 1024
_HELD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
"""A name itself, not what it stands for: of a link the link, of a pipe not its other end."""
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
    """Names on a path below the workspace.

    Raises:
        RequestError: it is empty, absolute, or holds "..", or a name that no file can have.
    """
    if "\0" in path or path.startswith("/"):
        raise RequestError(f"a path is relative to the workspace and without NUL, not {path!r}")
    names = [name for name in path.split("/") if name not in {"", "."}]
    if not names or ".." in names:
        raise RequestError(f"a path names a file inside the workspace, without '..', not {path!r}")
    return names


async def put(workspace: Path, path: str, content: AsyncIterable[bytes]) -> int:
    """Write a file whole or not at all, making its folders; how many bytes it has.

    Raises:
        RequestError: the path leads out, something is in its way, or there is no room.
    """
    *folders, name = names_of(path)
    partial = f".put-{secrets.token_hex(8)}"
    written = 0
    with _refusing(path), _folder(workspace, folders, make=True) as folder:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(partial, flags, 0o644, dir_fd=folder)
        try:
            async for data in content:
                written += len(data)
                if written > MAX_FILE_BYTES:
                    raise RequestError(f"a file has at most {MAX_FILE_BYTES} bytes", status=413)
                _write_all(file, data)
            os.rename(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial, dir_fd=folder)
            raise
        finally:
            os.close(file)
    return written


def open_file(workspace: Path, path: str) -> BinaryIO:
    """A plain file of the workspace, to read.

    Raises:
        RequestError: the path leads out, there is no such file, or it is no plain one, or too long.
    """
    *folders, name = names_of(path)
    with _refusing(path), _folder(workspace, folders, make=False) as folder:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=folder)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise RequestError(f"{path!r} is no plain file", status=409)
    if status.st_size > MAX_FILE_BYTES:
        os.close(descriptor)
        raise RequestError(f"{path!r} has more than {MAX_FILE_BYTES} bytes", status=413)
    return os.fdopen(descriptor, "rb", buffering=0)


async def chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    """What a file holds, at most the limit should it grow meanwhile; closes it."""
    left = MAX_FILE_BYTES
    with file:
        while left and (data := file.read(min(_CHUNK_BYTES, left))):
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
            raise RequestError(f"{path!r} leads over a symbolic link", status=409) from error
        status = _STATUS.get(error.errno or 0, 400)
        raise RequestError(f"{path!r}: {error.strerror}", status=status) from error


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]

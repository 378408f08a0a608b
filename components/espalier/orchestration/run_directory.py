"""The folder of one run: made once, written by one process at a time, never left half-written."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from espalier.records import ArtifactError

PROFILE_NAME = "profile.json"
_LOCK_NAME = ".lock"


@contextmanager
def locked_run(run_dir: Path) -> Iterator[None]:
    """Make `run_dir` where it is missing and keep every other run out of it inside the block.

    The lock is the kernel's and dies with the process, so a killed run leaves none behind.

    Raises:
        ArtifactError: the folder cannot be made or written, or another run is using it.
    """
    lock = run_dir / _LOCK_NAME
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        stream = lock.open("a+", encoding="utf-8")
    except OSError as error:
        raise ArtifactError(
            f"{run_dir}: cannot be written ({error.strerror}). Choose another --out, or mend the "
            "rights of that folder"
        ) from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            stream.seek(0)
            owner = stream.read().strip() or "unknown"
            raise ArtifactError(
                f"{run_dir}: another run is using this folder (process {owner}). Wait for it, stop "
                "it, or choose another --out"
            ) from error
        stream.truncate(0)
        stream.write(f"{os.getpid()}\n")
        stream.flush()
        yield


def write_atomically(path: Path, text: str) -> None:
    """Write `text` beside `path`, then rename it there: a reader sees the old text or the new.

    Raises:
        ArtifactError: the folder cannot be written, or the disk is full.
    """
    draft = path.with_name(f".{path.name}.draft")
    try:
        with draft.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    except OSError as error:
        raise ArtifactError(
            f"{path}: could not be written ({error.strerror}). Free space or mend the folder's "
            "rights, and run the same command again"
        ) from error

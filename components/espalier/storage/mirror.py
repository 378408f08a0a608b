"""A copy in S3 of a folder of checkpoints, made by a thread while training continues.

The trainer replaces a file by a rename, or writes new files before it renames the file that names
them. So a state of the folder that two listings agree on is one to resume from. Its files are
linked, which pins their contents, and the links are published like an artifact: all or nothing.

There is one upload at a time. After it the thread pauses for as long as the upload took, and then
sends only the newest of the states that were written meanwhile.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from espalier.records import MANIFEST_NAME, ArtifactError, Manifest, Provenance, StorageError
from espalier.records.artifact import describe
from espalier.storage.requests import TransferAbandoned

if TYPE_CHECKING:
    from espalier.storage.expiring import ExpiringLocation

POLL_S = 1.0
_SAVED_WITHIN_S = 60.0
"""A draft without a write for longer than this belongs to a killed process."""
_PAUSE_AFTER_FAULT_S = 60.0
_DRAFT_SUFFIX = ".partial"
_TOUCHED_EVERY_S = 3600.0
"""The collector deletes a copy only after days without use, so an hourly touch is enough."""
_GIVEN_UP_WITHIN_S = 10.0
"""Time for the part that is being sent to end, before the copy may be deleted."""


class _File(NamedTuple):
    inode: int
    num_bytes: int
    modified_ns: int


class FolderMirror:
    """A context manager in whose block the newest state of `folder` is copied to `place`.

    If the block succeeds or is interrupted, a copy under way is given up. If it fails, the newest
    state is copied first, because the next attempt resumes from it.
    """

    def __init__(
        self,
        folder: Path,
        place: ExpiringLocation,
        provenance: Provenance,
        say: Callable[[str], None],
    ) -> None:
        """Create the mirror; no request is sent yet.

        Args:
            folder: the checkpoints; it need not exist yet.
            place: location of the copy; its transfers are given up when the block ends.
            provenance: that of the output the checkpoints are for; their manifest has it too.
            say: takes a line for the log, from any thread.
        """
        self._folder, self._place = folder, place
        self._ended, self._is_given_up = threading.Event(), False
        self._provenance, self._say = provenance, say
        self._copied: dict[str, _File] = {}
        self._last_fault = ""
        self._thread = threading.Thread(target=self._watch, name="checkpoints", daemon=True)

    def restore(self, is_current: Callable[[Manifest], bool]) -> None:
        """Fill the folder with the copy, if it is empty and the copy belongs to the same work.

        If the copy cannot be read or is damaged, that is logged and the folder stays empty.

        Args:
            is_current: whether a manifest belongs to the work to be done.
        """
        if _state(self._folder):
            return  # left by an attempt on this disk, so at least as new as the copy
        try:
            manifest = self._place.manifest()
            if manifest is None or not is_current(manifest):
                return
            self._place.touch()
            fetched = self._place.fetch(self._folder)
        except (StorageError, ArtifactError) as error:
            self._say(
                f"no checkpoint is restored from {self._place.uri}, the stage starts anew: {error}"
            )
            return
        (self._folder / MANIFEST_NAME).unlink()
        self._copied = _state(self._folder)
        self._say(f"resumes from the checkpoint of {fetched.created} in {self._place.uri}")

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the thread, at once or after the newest state is copied."""
        if kind is not None and issubclass(kind, Exception):
            self._ended.set()
            self._thread.join()
            return
        self._is_given_up = True
        self._place.give_up()
        self._ended.set()
        if kind is None:
            self._thread.join(_GIVEN_UP_WITHIN_S)

    def _watch(self) -> None:
        pause_s = POLL_S
        touched = time.monotonic()
        while not self._ended.wait(pause_s):
            pause_s, seen, now = POLL_S, _state(self._folder), time.monotonic()
            if seen and seen != self._copied and not _is_being_saved(self._folder):
                is_copied = self._copy(seen)
                took_s = time.monotonic() - now
                pause_s = max(POLL_S, took_s) if is_copied else _PAUSE_AFTER_FAULT_S
                touched = time.monotonic()
            elif seen and now - touched > _TOUCHED_EVERY_S:
                self._touch()
                touched = now
        seen = _state(self._folder)
        if seen and seen != self._copied and not self._is_given_up:
            self._copy(seen)

    def _copy(self, seen: dict[str, _File]) -> bool:
        """Copy one state of the folder; False after an error of the storage or the disk."""
        links = self._folder.with_name(f"{self._folder.name}.copy")
        try:
            shutil.rmtree(links, ignore_errors=True)
            _link(self._folder, seen, links)
            if _state(self._folder) != seen:
                return True  # replaced meanwhile: the next look finds the newer state
            created = datetime.now(UTC).isoformat(timespec="seconds")
            manifest = describe(links, self._provenance, {}, created)
            (links / MANIFEST_NAME).write_text(manifest.model_dump_json(indent=2))
            self._place.replace(links)
        except TransferAbandoned:
            return True
        except FileNotFoundError:
            return True  # as above
        except (StorageError, ArtifactError, OSError) as error:
            self._fail(error)
            return False
        finally:
            shutil.rmtree(links, ignore_errors=True)
        if not self._copied:
            self._say(f"checkpoints are copied to {self._place.uri}")
        self._copied = seen
        return True

    def _touch(self) -> None:
        try:
            self._place.touch()
        except StorageError as error:
            self._fail(error)
        except TransferAbandoned:
            return

    def _fail(self, error: Exception) -> None:
        """Log a failure once, because the storage may be unreachable for long."""
        if str(error) != self._last_fault:
            self._last_fault = str(error)
            self._say(f"the newest checkpoint is not copied to {self._place.uri}: {error}")


def _is_being_saved(folder: Path) -> bool:
    """Whether a newer state is being written, so that the copy should wait for it."""
    for draft in _paths_below(folder):
        if draft.suffix != _DRAFT_SUFFIX:
            continue
        try:
            age_s = time.time() - draft.stat().st_mtime
        except FileNotFoundError:
            continue  # complete and renamed
        if age_s < _SAVED_WITHIN_S:
            return True
    return False


def _paths_below(folder: Path) -> Iterator[Path]:
    """All files and folders below. A folder deleted during the listing counts as empty."""
    for directory, folders, files in os.walk(folder):  # `rglob` raises for such a folder
        yield from (Path(directory, name) for name in (*folders, *files))


def _state(folder: Path) -> dict[str, _File]:
    """Complete files of the folder, without hidden files and those with the draft suffix."""
    found: dict[str, _File] = {}
    for path in _paths_below(folder):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts) or path.suffix == _DRAFT_SUFFIX:
            continue
        try:
            status = path.stat()
        except FileNotFoundError:
            continue  # deleted at this moment
        if stat.S_ISREG(status.st_mode):
            found[name.as_posix()] = _File(status.st_ino, status.st_size, status.st_mtime_ns)
    return found


def _link(folder: Path, names: dict[str, _File], target: Path) -> None:
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(folder / name, target / name)
        except FileNotFoundError:
            raise
        except OSError:  # a file system without links
            shutil.copyfile(folder / name, target / name)
